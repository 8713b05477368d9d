// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "class_tables.h"

#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "elf_sections.h"

#define RELOCATIONS_MOST ((uint64_t)1 << 22)

struct reading {
    const struct pm_elf *file;
    struct pm_elf_table symbols;
    ElfW(Rela) * word;          // what the linker puts where, by its place
    uint64_t words, plain, all; // of them; the first ones, see sort(); how many there is room for
    struct pm_class_table *list;
    size_t count, types;
};

// ---- relocations --------------------------------------------------------------------------------

static void sift(ElfW(Rela) * w, uint64_t at, uint64_t count) {
    for (uint64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && w[child].r_offset < w[child + 1].r_offset;
        if (w[at].r_offset >= w[child].r_offset)
            return;
        ElfW(Rela) t = w[at];
        w[at] = w[child];
        w[child] = t;
    }
}

// Linkers put those first that have an address alone, in order. The others are sorted in place:
// libc's qsort() allocates.
static void sort(struct reading *r) {
    while (r->plain < r->words && ELF64_R_TYPE(r->word[r->plain].r_info) == R_X86_64_RELATIVE &&
           (!r->plain || r->word[r->plain - 1].r_offset <= r->word[r->plain].r_offset))
        r->plain++;
    ElfW(Rela) *w = r->word + r->plain;
    uint64_t count = r->words - r->plain;
    for (uint64_t i = count / 2; i--;)
        sift(w, i, count);
    for (uint64_t last = count; last-- > 1;) {
        ElfW(Rela) t = w[0];
        w[0] = w[last];
        w[last] = t;
        sift(w, 0, last);
    }
}

static const unsigned char *relocations(const struct pm_elf *f, size_t i, uint64_t *count) {
    ElfW(Shdr) s;
    *count = 0;
    if (!pm_elf_shdr(f, i, &s) || s.sh_type != SHT_RELA || !(s.sh_flags & SHF_ALLOC))
        return NULL;
    *count = s.sh_size / sizeof(ElfW(Rela));
    return pm_elf_bytes(f, s.sh_offset, s.sh_size);
}

static bool read_relocations(struct reading *r) {
    uint64_t count;
    for (size_t i = 0; i < r->file->ehdr.e_shnum; i++)
        r->all += relocations(r->file, i, &count) ? count : 0;
    if (r->all && r->all < RELOCATIONS_MOST)
        r->word = pm_os_reserve(r->all * sizeof *r->word);
    for (size_t i = 0; r->word && i < r->file->ehdr.e_shnum; i++) {
        const unsigned char *bytes = relocations(r->file, i, &count);
        if (bytes)
            memcpy(r->word + r->words, bytes, count * sizeof *r->word);
        r->words += bytes ? count : 0;
    }
    sort(r);
    return r->word != NULL;
}

static const ElfW(Rela) * find_word(const ElfW(Rela) * w, uint64_t count, uint64_t at) {
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (w[middle].r_offset < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && w[low].r_offset == at ? &w[low] : NULL;
}

// What the linker puts there; NULL: nothing.
static const ElfW(Rela) * word_at(const struct reading *r, uint64_t at) {
    const ElfW(Rela) *w = find_word(r->word, r->plain, at);
    return w ? w : find_word(r->word + r->plain, r->words - r->plain, at);
}

// An address of this object; 0: it is none.
static uint64_t address_of(const struct reading *r, const ElfW(Rela) * w) {
    ElfW(Sym) s;
    if (!w || ELF64_R_TYPE(w->r_info) == R_X86_64_RELATIVE)
        return w ? (uint64_t)w->r_addend : 0;
    if (ELF64_R_TYPE(w->r_info) != R_X86_64_64 ||
        !pm_elf_symbol_at(&r->symbols, ELF64_R_SYM(w->r_info), &s))
        return 0;
    return s.st_shndx == SHN_UNDEF ? 0 : s.st_value + (uint64_t)w->r_addend;
}

static uint64_t address_at(const struct reading *r, uint64_t at) {
    return address_of(r, word_at(r, at));
}

// The name of the symbol that the linker puts there, and how far into it.
static const char *symbol_at(const struct reading *r, uint64_t at, int64_t *into) {
    const ElfW(Rela) *w = word_at(r, at);
    ElfW(Sym) s;
    if (!w || ELF64_R_TYPE(w->r_info) != R_X86_64_64)
        return NULL;
    *into = w->r_addend;
    return pm_elf_symbol_at(&r->symbols, ELF64_R_SYM(w->r_info), &s);
}

// ---- sections -----------------------------------------------------------------------------------

static bool section_at(const struct pm_elf *f, uint64_t address, ElfW(Shdr) * out) {
    for (size_t i = 0; pm_elf_shdr(f, i, out); i++)
        if (out->sh_flags & SHF_ALLOC && !(out->sh_flags & SHF_TLS) &&
            address - out->sh_addr < out->sh_size)
            return true;
    return false;
}

static bool is_code(const struct reading *r, uint64_t at) {
    int64_t into;
    ElfW(Shdr) s;
    uint64_t address = address_at(r, at);
    if (address)
        return section_at(r->file, address, &s) && s.sh_flags & SHF_EXECINSTR;
    return symbol_at(r, at, &into) && into == 0; // of another object
}

static bool load(const struct reading *r, uint64_t at, void *out, size_t size) {
    ElfW(Shdr) s;
    if (word_at(r, at) || !section_at(r->file, at, &s) || s.sh_type != SHT_PROGBITS ||
        s.sh_size - (at - s.sh_addr) < size)
        return false;
    const unsigned char *bytes = pm_elf_bytes(r->file, s.sh_offset + (at - s.sh_addr), size);
    if (bytes)
        memcpy(out, bytes, size);
    return bytes != NULL;
}

static const char *name_at(const struct pm_elf *f, uint64_t at) {
    static const char letters[] = "0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    ElfW(Shdr) s;
    if (!section_at(f, at, &s) || !pm_section_is_constant(&s))
        return NULL;
    uint64_t left = s.sh_size - (at - s.sh_addr);
    const char *text = (const char *)pm_elf_bytes(f, s.sh_offset + (at - s.sh_addr), left);
    if (!text || !memchr(text, 0, left))
        return NULL;
    size_t star = *text == '*', length = strlen(text + star); // of one file alone
    return length && strspn(text + star, letters) == length ? text : NULL;
}

// ---- classes ------------------------------------------------------------------------------------

// By the class of the type_info itself, which libstdc++ or libc++abi has.
static uint32_t size_of_type(const struct reading *r, uint64_t at) {
    static const char start[] = "_ZTVN10__cxxabiv1";
    int64_t into = 0;
    uint32_t bases[2];
    const char *name = symbol_at(r, at, &into);
    if (!name || into != 16 || strncmp(name, start, sizeof start - 1) != 0)
        return 0;
    name += sizeof start - 1;
    return strcmp(name, "17__class_type_infoE") == 0      ? 16
           : strcmp(name, "20__si_class_type_infoE") == 0 ? 24
           : strcmp(name, "21__vmi_class_type_infoE") == 0 && load(r, at + 16, bases, 8) &&
                   bases[1] < 1024
               ? 24 + 16 * bases[1]
               : 0;
}

static void find_types(struct reading *r) {
    for (uint64_t i = 0; i < r->words; i++) {
        uint64_t at = r->word[i].r_offset, name;
        uint32_t size = size_of_type(r, at);
        if (size && (name = address_at(r, at + 8)) != 0 && name_at(r->file, name))
            r->list[r->count++] = (struct pm_class_table){at, name, 0, 0, size};
    }
    r->types = r->count;
}

// They are in the order of their places.
static const struct pm_class_table *type_at(const struct reading *r, uint64_t at) {
    size_t low = 0, high = r->types;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->list[middle].at < at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->types && r->list[low].at == at ? &r->list[low] : NULL;
}

static void find_tables(struct reading *r) {
    for (uint64_t i = 0; i < r->words; i++) {
        uint64_t at = r->word[i].r_offset - 8;
        uint64_t to = address_of(r, &r->word[i]);
        const struct pm_class_table *type = to ? type_at(r, to) : NULL;
        int64_t top;
        uint32_t count = 0;
        if (!type || !load(r, at, &top, sizeof top) || top > 0 || top % 8 || !is_code(r, at + 16))
            continue;
        while (count < 4096 && is_code(r, at + 16 + (uint64_t)count * 8))
            count++;
        r->list[r->count++] = (struct pm_class_table){at, type->name, top, count, 0};
    }
}

// ---- those of which there are several -----------------------------------------------------------

static uint64_t hash_of(const struct pm_elf *f, const struct pm_class_table *c) {
    const char *name = name_at(f, c->name);
    uint64_t h = 14695981039346656037u ^ (uint64_t)c->top ^ (c->has_type != 0);
    for (name += *name == '*'; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h | 1;
}

// Equal hashes count as equal names: then less is known.
static void leave_out_several(struct reading *r) {
    size_t buckets = 2 * r->count + 1, kept = 0;
    struct {
        uint64_t hash, count;
    } *seen = pm_os_reserve(buckets * sizeof *seen);
    for (size_t i = 0; seen && i < r->count; i++) {
        uint64_t h = hash_of(r->file, &r->list[i]);
        size_t at = h % buckets;
        while (seen[at].hash && seen[at].hash != h)
            at = (at + 1) % buckets;
        seen[at].hash = h;
        seen[at].count++;
    }
    for (size_t i = 0; seen && i < r->count; i++) {
        uint64_t h = hash_of(r->file, &r->list[i]);
        size_t at = h % buckets;
        while (seen[at].hash != h)
            at = (at + 1) % buckets;
        if (seen[at].count == 1)
            r->list[kept++] = r->list[i];
    }
    if (seen)
        munmap(seen, buckets * sizeof *seen);
    r->count = kept;
}

static bool take_packed(const struct pm_elf *f, struct pm_class_tables *t) {
    ElfW(Shdr) s;
    if (!pm_elf_shdr(f, 0, &s) || s.sh_type != PM_SHT_CLASS_TABLES)
        return false;
    t->list = (const void *)pm_elf_bytes(f, s.sh_offset, s.sh_size);
    t->count = t->list ? s.sh_size / sizeof *t->list : 0;
    return true;
}

struct pm_class_tables pm_class_tables(const struct pm_elf *f) {
    struct pm_class_tables t = {0};
    struct reading r = {.file = f};
    if (take_packed(f, &t) || !pm_elf_imports(f, "_ZTVN10__cxxabiv1") ||
        pm_elf_table(f, SHT_DYNSYM, &r.symbols) <= 0 || !read_relocations(&r))
        return t;
    t.own_bytes = 2 * r.all * sizeof *r.list; // a word begins one of each at most
    t.own = r.list = pm_os_reserve(t.own_bytes);
    if (r.list) {
        find_types(&r);
        find_tables(&r);
        leave_out_several(&r);
    }
    munmap(r.word, r.all * sizeof *r.word);
    t.list = r.list;
    t.count = r.count;
    return t;
}

void pm_class_tables_drop(struct pm_class_tables *t) {
    if (t->own)
        munmap(t->own, t->own_bytes);
    *t = (struct pm_class_tables){0};
}

const struct pm_class_table *pm_class_table_at(const struct pm_class_tables *t, uint64_t address) {
    for (size_t i = 0; i < t->count; i++)
        if (pm_class_table_address(&t->list[i]) == address)
            return &t->list[i];
    return NULL;
}

const char *pm_class_table_name(const struct pm_elf *f, const struct pm_class_table *c) {
    const char *name = name_at(f, c->name);
    return name && *name == '*' ? name + 1 : name;
}
