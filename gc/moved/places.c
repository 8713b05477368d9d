// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "places.h"

#include <string.h>

#include "base/os.h"
#include "frames.h"
#include "roots/elf_sections.h"

// ---- symbols ------------------------------------------------------------------------------------

static uint32_t hash_of(const char *name) {
    uint32_t h = 5381;
    for (; *name; name++)
        h = h * 33 + (unsigned char)*name;
    return h;
}

static bool is_wanted(const ElfW(Sym) * s, const char *name) {
    unsigned type = ELF64_ST_TYPE(s->st_info);
    return name && *name && s->st_shndx != SHN_UNDEF && s->st_shndx != SHN_ABS &&
           (type == STT_FUNC || type == STT_GNU_IFUNC || type == STT_OBJECT);
}

static void take(struct pm_places *p, const struct pm_elf_table *t) {
    ElfW(Sym) s;
    const char *file = "";
    for (uint64_t i = 1; i < t->count; i++) {
        const char *name = pm_elf_symbol_at(t, i, &s);
        if (ELF64_ST_TYPE(s.st_info) == STT_FILE)
            file = name ? name : "";
        if (!is_wanted(&s, name))
            continue;
        bool local = ELF64_ST_BIND(s.st_info) == STB_LOCAL;
        p->symbol[++p->symbols] = (struct pm_place_symbol){
            .at = s.st_value,
            .size = s.st_size,
            .name = name,
            .file = local ? file : NULL,
            .code = ELF64_ST_TYPE(s.st_info) != STT_OBJECT,
        };
    }
}

// By address. Of those at one address the names that others can use come first.
static bool is_before(const struct pm_place_symbol *a, const struct pm_place_symbol *b) {
    return a->at != b->at ? a->at < b->at : !a->file && b->file;
}

static void sift(struct pm_place_symbol *s, uint32_t at, uint32_t count) {
    for (uint32_t child; (child = 2 * at) <= count; at = child) {
        child += child < count && is_before(&s[child], &s[child + 1]);
        if (!is_before(&s[at], &s[child]))
            return;
        struct pm_place_symbol t = s[at];
        s[at] = s[child];
        s[child] = t;
    }
}

// In place: libc's qsort() allocates.
static void sort(struct pm_place_symbol *s, uint32_t count) {
    for (uint32_t i = count / 2; i; i--)
        sift(s, i, count);
    for (uint32_t last = count; last > 1; last--) {
        struct pm_place_symbol t = s[1];
        s[1] = s[last];
        s[last] = t;
        sift(s, 1, last - 1);
    }
}

static bool index_symbols(struct pm_places *p) {
    struct pm_elf_table all = {0}, exported = {0};
    p->has_names = pm_elf_table(&p->elf, SHT_SYMTAB, &all) > 0;
    if (!p->has_names && pm_elf_table(&p->elf, SHT_DYNSYM, &exported) < 0)
        return false;
    uint64_t most = all.count + exported.count + 1;
    p->buckets = most < UINT32_MAX / 2 ? (uint32_t)most | 1 : 0;
    if (!p->buckets)
        return false;
    p->symbol = pm_os_reserve(most * sizeof *p->symbol);
    p->bucket = pm_os_reserve(p->buckets * sizeof *p->bucket);
    if (!p->symbol || !p->bucket)
        return false;
    take(p, p->has_names ? &all : &exported);
    sort(p->symbol, p->symbols);
    for (uint32_t i = p->symbols; i; i--) {
        uint32_t *first = &p->bucket[hash_of(p->symbol[i].name) % p->buckets];
        p->symbol[i].next = *first;
        *first = i;
    }
    return true;
}

bool pm_places_make(struct pm_places *p, const struct pm_elf *elf) {
    *p = (struct pm_places){.elf = *elf, .classes = pm_class_tables(elf)};
    return index_symbols(p) && pm_frames_starts(&p->elf, &p->function, &p->functions);
}

const struct pm_place_symbol *pm_place_named(const struct pm_places *p, const char *name) {
    const struct pm_place_symbol *s = &p->symbol[p->bucket[hash_of(name) % p->buckets]];
    for (; s != p->symbol; s = &p->symbol[s->next])
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

// ---- sections -----------------------------------------------------------------------------------

static bool section_at(const struct pm_places *p, uint64_t address, ElfW(Shdr) * out) {
    for (size_t i = 0; pm_elf_shdr(&p->elf, i, out); i++)
        if (out->sh_flags & SHF_ALLOC && !(out->sh_flags & SHF_TLS) &&
            address - out->sh_addr < out->sh_size)
            return pm_section_is_led_to(&p->elf, out);
    return false;
}

// ---- what lies at an address --------------------------------------------------------------------

// The last symbol that begins at or before it; 0: there is none.
static uint32_t last_before(const struct pm_places *p, uint64_t address) {
    uint32_t low = 0, high = p->symbols;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (p->symbol[middle].at <= address)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

uint32_t pm_place_first_at(const struct pm_places *p, uint64_t address) {
    uint32_t before = address ? last_before(p, address - 1) : 0;
    bool begins = before < p->symbols && p->symbol[before + 1].at == address;
    return begins ? before + 1 : 0;
}

#define LOOK_BACK 64 // symbols within others, and aliases

// The symbol that has the address. `end`: one that ends there does, too.
static const struct pm_place_symbol *symbol_at(const struct pm_places *p, uint64_t address,
                                               bool code, bool end) {
    const struct pm_place_symbol *found = NULL;
    uint32_t i = last_before(p, address);
    for (unsigned tries = 0; i && tries < LOOK_BACK; i--, tries++) {
        const struct pm_place_symbol *s = &p->symbol[i];
        bool has = address - s->at < s->size || (end && address - s->at == s->size && s->size);
        if (s->code == code && (has || s->at == address) && (!found || s->at == found->at))
            found = s; // the first of those at one address
        else if (found && s->at != found->at)
            break;
    }
    return found;
}

static bool begins_function(const struct pm_places *p, uint64_t address) {
    uint32_t low = 0, high = p->functions;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->function[middle] < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->functions && p->function[low] == address;
}

static void take_symbol(struct pm_place_of *out, const struct pm_place_symbol *s,
                        uint64_t address) {
    out->name = s->name;
    out->file = s->file;
    out->size = s->size;
    out->into = address - s->at;
}

static void look_at_code(const struct pm_places *p, uint64_t address, struct pm_place_of *out) {
    const struct pm_place_symbol *s = symbol_at(p, address, true, false);
    if (s)
        take_symbol(out, s, address);
    bool start = (s && s->at == address) || begins_function(p, address);
    if (start && s && s->at != address)
        out->name = NULL;
    out->kind = start ? PM_PLACE_FUNCTION : PM_PLACE_CODE;
}

#define LITERAL_MOST ((uint64_t)64 << 10)

// How many bytes a character has that begins with this one; 0: none does. Of UTF-8.
static unsigned character_bytes(unsigned char c) {
    bool control = c == 0x7f || (c < 0x20 && !(c >= '\a' && c <= '\r') && c != '\x1b');
    return control     ? 0
           : c < 0x80  ? 1
           : c < 0xc2  ? 0
           : c < 0xe0  ? 2
           : c < 0xf0  ? 3
           : c <= 0xf4 ? 4
                       : 0;
}

// Constants without a name may have any bytes up to a zero: only what is text is taken for text.
static bool is_text(const char *text, uint64_t size) {
    for (uint64_t at = 0, end; at < size; at = end) {
        unsigned bytes = character_bytes((unsigned char)text[at]);
        end = at + bytes;
        if (!bytes || end > size)
            return false;
        for (uint64_t i = at + 1; i < end; i++)
            if (((unsigned char)text[i] & 0xc0) != 0x80)
                return false;
    }
    return true;
}

// In wide literals of Latin letters each letter looks like a string of one. How many bytes such a
// one has with its end, if it has units of `unit` bytes; 0: it has not.
static uint64_t wide_bytes(const char *text, uint64_t left, uint64_t unit) {
    static const char none[4];
    for (uint64_t at = 0; at + unit <= left; at += unit) {
        if (memcmp(text + at, none, unit) == 0)
            return at + unit;
        if (!text[at] || memcmp(text + at + 1, none, unit - 1) != 0)
            return 0;
    }
    return 0;
}

// Without its end.
static uint64_t literal_bytes(const char *text, uint64_t narrow, uint64_t left) {
    if (narrow > 1)
        return narrow;
    uint64_t two = wide_bytes(text, left, 2), four = wide_bytes(text, left, 4);
    uint64_t most = two > four ? two : four;
    return most ? most - 1 : narrow;
}

static void look_for_literal(const struct pm_places *p, const ElfW(Shdr) * s, uint64_t address,
                             struct pm_place_of *out) {
    const char *bytes = pm_section_is_constant(s)
                            ? (const char *)pm_elf_bytes(&p->elf, s->sh_offset, s->sh_size)
                            : NULL;
    uint64_t into = address - s->sh_addr, left = s->sh_size - into;
    const char *end =
        bytes ? memchr(bytes + into, 0, left < LITERAL_MOST ? left : LITERAL_MOST) : NULL;
    out->kind = PM_PLACE_DATA;
    if (!end || !is_text(bytes + into, (uint64_t)(end - bytes) - into))
        return;
    out->kind = PM_PLACE_STRING;
    out->text = bytes + into;
    out->size = literal_bytes(out->text, (uint64_t)(end - out->text), left);
}

void pm_place_at(const struct pm_places *p, uint64_t address, struct pm_place_of *out) {
    ElfW(Shdr) s;
    *out = (struct pm_place_of){.kind = PM_PLACE_NOTHING};
    bool inside = section_at(p, address, &s);
    if (inside && s.sh_flags & SHF_EXECINSTR) {
        look_at_code(p, address, out);
        return;
    }
    const struct pm_place_symbol *symbol = symbol_at(p, address, false, false);
    if (!symbol)
        symbol = symbol_at(p, address, false, true);
    bool ends = symbol && address - symbol->at == symbol->size;
    if (!inside && !ends)
        return;
    // A literal may begin where a constant ends.
    if (inside && (!symbol || ends))
        look_for_literal(p, &s, address, out);
    if (symbol && out->kind != PM_PLACE_STRING) {
        out->kind = PM_PLACE_VARIABLE;
        take_symbol(out, symbol, address);
    }
}

const unsigned char *pm_place_bytes(const struct pm_places *p, uint64_t address, uint64_t size) {
    ElfW(Shdr) s;
    if (!section_at(p, address, &s) || !pm_section_is_constant(&s) ||
        size > s.sh_size - (address - s.sh_addr))
        return NULL;
    return pm_elf_bytes(&p->elf, s.sh_offset + (address - s.sh_addr), size);
}

bool pm_place_is_constant(const struct pm_places *p, uint64_t address) {
    static const char relocated[] = ".data.rel.ro";
    ElfW(Shdr) s;
    return section_at(p, address, &s) &&
           (!(s.sh_flags & (SHF_WRITE | SHF_EXECINSTR)) ||
            strncmp(pm_elf_section_name(&p->elf, &s), relocated, sizeof relocated - 1) == 0);
}

// Not within a constant that has a name: the next build may have another one.
static uint64_t literal_in(const struct pm_places *p, const ElfW(Shdr) * s, const char *text,
                           uint64_t size) {
    const unsigned char *bytes = pm_elf_bytes(&p->elf, s->sh_offset, s->sh_size), *at = bytes;
    struct pm_place_of place;
    while (at && (at = memmem(at, s->sh_size - (uint64_t)(at - bytes), text, size + 1)) != NULL) {
        uint64_t address = s->sh_addr + (uint64_t)(at++ - bytes);
        pm_place_at(p, address, &place);
        if (place.kind == PM_PLACE_STRING)
            return address;
    }
    return 0;
}

uint64_t pm_place_of_literal(const struct pm_places *p, const char *text, uint64_t size) {
    ElfW(Shdr) s;
    uint64_t found = 0;
    for (size_t i = 0; !found && pm_elf_shdr(&p->elf, i, &s); i++)
        if (pm_section_is_constant(&s) && pm_section_is_led_to(&p->elf, &s))
            found = literal_in(p, &s, text, size);
    return found;
}
