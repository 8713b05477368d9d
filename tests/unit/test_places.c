// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What lies at the addresses of an object, by its file and by its packed object. The object is this
// very program.
#include "moved/places.h"

#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <uchar.h>
#include <wchar.h>

#include "check.h"
#include "moved/match.h"
#include "roots/packed_object.h"

static struct pm_error err;
static struct pm_elf file, packed;
static struct pm_places whole, small;
static uintptr_t base;

static int numbers[5] = {1, 2, 3, 4, 5};
static const char text[] = "a text that nothing else has";

static int take_base(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size, (void)arg;
    base = info->dlpi_addr;
    return 1;
}

static void prepare(void) {
    if (packed.map)
        return;
    dl_iterate_phdr(take_base, NULL);
    CHECK_EQ(pm_elf_open(&file, "/proc/self/exe", &err), PM_OK);
    size_t size = pm_packed_size(&file);
    unsigned char *bytes = calloc(1, size);
    pm_packed_write(&file, bytes);
    CHECK(size > 0 && size < file.size / 2 && !pm_elf_take(&packed, bytes, size));
    CHECK(pm_places_make(&whole, &file) && pm_places_make(&small, &packed));
}

static struct pm_place_of at(const struct pm_places *p, const void *address) {
    struct pm_place_of place;
    pm_place_at(p, (uintptr_t)address - base, &place);
    return place;
}

static void test_known_places(void) {
    prepare();
    const struct pm_places *both[] = {&whole, &small};
    const char *literal = strchr("~another text of this file", 'a');
    for (unsigned i = 0; i < 2; i++) {
        struct pm_place_of p = at(both[i], (void *)(uintptr_t)take_base);
        CHECK(p.kind == PM_PLACE_FUNCTION && strcmp(p.name, "take_base") == 0 && p.into == 0);
        CHECK_STR("test_places.c", p.file);
        p = at(both[i], (char *)(uintptr_t)take_base + 1);
        CHECK(p.kind == PM_PLACE_CODE && strcmp(p.name, "take_base") == 0);
        p = at(both[i], &numbers[3]);
        CHECK(p.kind == PM_PLACE_VARIABLE && strcmp(p.name, "numbers") == 0);
        CHECK(p.into == 12 && p.size == sizeof numbers);
        p = at(both[i], text);
        CHECK(p.kind == PM_PLACE_VARIABLE && strcmp(p.name, "text") == 0 && p.into == 0);
        p = at(both[i], literal);
        CHECK(p.kind == PM_PLACE_STRING && strcmp(p.text, literal) == 0);
        p = at(both[i], (void *)base); // the ELF header
        CHECK_EQ(p.kind, PM_PLACE_NOTHING);
    }
    CHECK(pm_place_named(&small, "take_base") && !pm_place_named(&small, "take_bas"));
}

// A letter alone may be the first of a wide literal: then all of that is compared.
static void test_wide_literals(void) {
    prepare();
    const struct pm_places *both[] = {&whole, &small};
    volatile wchar_t none[4] = {0}; // no constant of this file has it
    none[0] = none[1] = none[2] = L'o';
    for (unsigned i = 0; i < 2; i++) {
        struct pm_place_of p = at(both[i], wcschr(L"~aeiou of this file", 'a'));
        CHECK(p.kind == PM_PLACE_STRING && p.size == sizeof L"aeiou of this file" - 1);
        p = at(both[i], &u"~uoiea of this file"[1]);
        CHECK(p.kind == PM_PLACE_STRING && p.size == sizeof u"uoiea of this file" - 1);
        CHECK(pm_place_of_literal(both[i], (const char *)(uintptr_t)none, 2) != 0);
        CHECK_EQ(pm_place_of_literal(both[i], (const char *)(uintptr_t)none, sizeof none - 1), 0);
        p = at(both[i], strchr("~xyz", 'z'));
        CHECK(p.kind == PM_PLACE_STRING && p.size >= 1);
    }
}

// In the same build the same thing lies where it lay, for whatever address.
static void test_each_address_is_its_own(void) {
    prepare();
    char why[PM_MATCH_WHY];
    struct pm_matched found;
    uint64_t end = 0;
    unsigned kinds[6] = {0};
    for (uint32_t i = 1; i <= whole.symbols; i++)
        end = whole.symbol[i].at > end ? whole.symbol[i].at : end;
    for (uint64_t address = 0; address < end + 4096; address += 1 + address % 7) {
        struct pm_place_of a, b;
        pm_place_at(&whole, address, &a);
        pm_place_at(&small, address, &b);
        CHECK(a.kind == b.kind && a.into == b.into && a.size == b.size);
        kinds[a.kind]++;
        enum pm_match m = pm_match(&small, &whole, address, (struct pm_match_by){0}, &found, why);
        CHECK((m == PM_MATCH_NONE) == (a.kind == PM_PLACE_NOTHING));
        if (m == PM_MATCH_FOUND && a.kind != PM_PLACE_STRING)
            CHECK_EQ(found.at, address);
        if (m == PM_MATCH_FOUND && a.kind == PM_PLACE_STRING) {
            pm_place_at(&whole, found.at, &b);
            CHECK(b.kind == PM_PLACE_STRING && b.size >= a.size &&
                  memcmp(a.text, b.text, a.size + 1) == 0);
        }
        m = pm_match(&small, &whole, address, (struct pm_match_by){.exact = true}, &found, why);
        CHECK(m != PM_MATCH_FOUND || found.at == address);
    }
    for (unsigned kind = 0; kind < 6; kind++)
        CHECK(kinds[kind] || kind == PM_PLACE_DATA);
}

int main(void) {
    RUN(known_places);
    RUN(wide_literals);
    RUN(each_address_is_its_own);
    return CHECK_DONE();
}
