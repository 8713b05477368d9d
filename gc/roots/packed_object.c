// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "packed_object.h"

#include <string.h>

#include "class_tables.h"
#include "elf_sections.h"

#define ALIGN 16u

// The bytes of a section that are kept. NULL: none, or they are not in the file.
static const unsigned char *kept(const struct pm_elf *f, const ElfW(Shdr) * s, bool has_names) {
    const char *name = pm_elf_section_name(f, s);
    bool exported = s->sh_type == SHT_DYNSYM || strcmp(name, ".dynstr") == 0;
    bool wanted = s->sh_type == SHT_SYMTAB || (s->sh_type == SHT_STRTAB && !exported) ||
                  (exported && !has_names) || strcmp(name, ".eh_frame_hdr") == 0 ||
                  (pm_section_is_constant(s) && pm_section_is_led_to(f, s));
    return wanted ? pm_elf_bytes(f, s->sh_offset, s->sh_size) : NULL;
}

typedef void put_fn(unsigned char *out, uint64_t to, const void *from, uint64_t len);

// In the first section header, which has nothing to say. Returns where they end.
static uint64_t lay_out_tables(const struct pm_elf *f, ElfW(Shdr) * s, uint64_t at,
                               unsigned char *out, put_fn *put) {
    struct pm_class_tables t = pm_class_tables(f);
    uint64_t size = t.count * sizeof *t.list;
    *s = (ElfW(Shdr)){.sh_type = PM_SHT_CLASS_TABLES, .sh_offset = at, .sh_size = size};
    if (size)
        put(out, at, t.list, size);
    pm_class_tables_drop(&t);
    return at + size;
}

// Lays out what is kept, and calls `put` for each piece. Returns where it ends.
static uint64_t lay_out(const struct pm_elf *f, unsigned char *out, put_fn *put) {
    ElfW(Ehdr) head = f->ehdr;
    uint64_t at = sizeof head, count = head.e_phnum;
    const unsigned char *segments = pm_elf_bytes(f, head.e_phoff, count * sizeof(ElfW(Phdr)));
    ElfW(Shdr) s;
    bool has_names = pm_elf_has_symtab(f);
    size_t sections = 0;
    while (pm_elf_shdr(f, sections, &s))
        sections++;
    head.e_phoff = at;
    put(out, at, segments, count * sizeof(ElfW(Phdr)));
    at += count * sizeof(ElfW(Phdr));
    head.e_shoff = at;
    head.e_shnum = (uint16_t)sections;
    uint64_t headers = at;
    at += sections * sizeof s;
    for (size_t i = 0; pm_elf_shdr(f, i, &s); i++) {
        const unsigned char *from = i ? kept(f, &s, has_names) : NULL;
        bool led_to = pm_section_is_led_to(f, &s);
        at = (at + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
        s.sh_offset = from ? at : 0;
        if (!from) // its place in memory is known, its contents are not
            s.sh_type = led_to ? SHT_NOBITS : SHT_NULL;
        if (from)
            put(out, at, from, s.sh_size);
        at += from ? s.sh_size : 0;
        if (i == 0)
            at = lay_out_tables(f, &s, at, out, put);
        put(out, headers + i * sizeof s, &s, sizeof s);
    }
    put(out, 0, &head, sizeof head);
    return at;
}

static void put_nothing(unsigned char *out, uint64_t to, const void *from, uint64_t len) {
    (void)out, (void)to, (void)from, (void)len;
}

static void put_bytes(unsigned char *out, uint64_t to, const void *from, uint64_t len) {
    memcpy(out + to, from, len);
}

size_t pm_packed_size(const struct pm_elf *f) {
    ElfW(Shdr) s;
    if (!pm_elf_bytes(f, f->ehdr.e_phoff, (uint64_t)f->ehdr.e_phnum * sizeof(ElfW(Phdr))) ||
        !pm_elf_shdr(f, 0, &s))
        return 0;
    return lay_out(f, NULL, put_nothing);
}

void pm_packed_write(const struct pm_elf *f, unsigned char *out) { lay_out(f, out, put_bytes); }
