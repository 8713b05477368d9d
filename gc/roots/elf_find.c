// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "elf_find.h"

#include <string.h>
#include <strings.h>

#include "base/similar.h"
#include "made_names.h"

// Whether the string is the name, perhaps with @VERSION after it, or with what LTO has put there.
// `room` bytes of the string are in the table.
static bool name_matches(const char *s, uint64_t room, const char *name, size_t len) {
    return room > len && memcmp(s, name, len) == 0 &&
           (s[len] == '\0' || s[len] == '@' || pm_is_lto_suffix(s + len, room - len));
}

// Whether LTO has given this symbol its name: the variable was local to a file, and may be hidden
// from other objects only now.
static bool is_renamed(const char *s, uint64_t room) {
    const char *dot = memchr(s, '.', strnlen(s, room));
    return dot != NULL && pm_is_lto_suffix(dot, room - (uint64_t)(dot - s));
}

enum { LOCAL = 1, WEAK, GLOBAL };

static unsigned rank_of(const ElfW(Sym) * s) {
    switch (ELF64_ST_BIND(s->st_info)) {
    case STB_GLOBAL:
    case STB_GNU_UNIQUE:
        return GLOBAL;
    case STB_WEAK:
        return WEAK;
    default:
        return LOCAL;
    }
}

static enum pm_elf_verdict judge(const ElfW(Sym) * s) {
    switch (ELF64_ST_TYPE(s->st_info)) {
    case STT_TLS:
        return PM_ELF_TLS;
    case STT_FUNC:
    case STT_GNU_IFUNC:
        return PM_ELF_FUNCTION;
    case STT_OBJECT:
    case STT_COMMON:
    case STT_NOTYPE: // assembler and linker-script variables
        if (s->st_shndx == SHN_ABS)
            return PM_ELF_ABSOLUTE;
        return s->st_size != 0 ? PM_ELF_FOUND : PM_ELF_NO_SIZE;
    default: // sections, files
        return PM_ELF_MISSING;
    }
}

// Another variable of the name than the one found. Aliases (same place and size) are one variable.
static void take_second(struct pm_elf_symbol *out, uint64_t value, uint64_t size) {
    if ((out->value == value && out->size == size) ||
        (out->count > 1 && out->second_value == value))
        return;
    out->verdict = PM_ELF_AMBIGUOUS;
    out->second_value = value;
    out->second_size = size;
    out->count++;
}

// Takes the symbol if it is better than the one found so far. A usable variable is better than
// anything else, then a higher binding, then the one found first.
static void consider(struct pm_elf_symbol *out, const ElfW(Sym) * s, unsigned rank) {
    enum pm_elf_verdict v = judge(s);
    bool had = out->verdict == PM_ELF_FOUND || out->verdict == PM_ELF_AMBIGUOUS;
    if (v == PM_ELF_MISSING || (v != PM_ELF_FOUND && out->verdict != PM_ELF_MISSING))
        return;
    if (v == PM_ELF_FOUND && had) {
        if (rank == out->rank)
            take_second(out, s->st_value, s->st_size);
        if (rank <= out->rank)
            return;
    }
    out->verdict = v;
    out->value = s->st_value;
    out->size = s->st_size;
    out->rank = rank;
    out->count = 1;
    out->preemptible = rank > LOCAL && ELF64_ST_VISIBILITY(s->st_other) == STV_DEFAULT;
}

// Remembers a variable whose name is like the one asked for: it differs in case only (these come
// first), or one of the two begins with the other.
static void consider_near(struct pm_elf_symbol *out, const char *s, uint64_t room, const char *name,
                          size_t len) {
    size_t n = strnlen(s, room < PM_ELF_NEAR_LEN ? room : PM_ELF_NEAR_LEN);
    if (n == PM_ELF_NEAR_LEN || n == room || n < 2 || len < 2)
        return;
    bool same = n == len && strncasecmp(s, name, n) == 0;
    if (!same &&
        (out->near_count == PM_ELF_NEAR_MAX || strncasecmp(s, name, n < len ? n : len) != 0))
        return;
    for (unsigned i = 0; i < out->near_count; i++)
        if (memcmp(out->near_name[i], s, n + 1) == 0)
            return;
    unsigned at = out->near_count;
    if (same) {
        at = 0;
        memmove(out->near_name[1], out->near_name[0], (PM_ELF_NEAR_MAX - 1) * PM_ELF_NEAR_LEN);
    }
    memcpy(out->near_name[at], s, n + 1);
    if (out->near_count < PM_ELF_NEAR_MAX)
        out->near_count++;
}

// The same for a C++ variable in a scope, if the name asked for is its name without the scope.
static void consider_scoped(struct pm_elf_symbol *out, const char *plain, const char *name,
                            size_t len) {
    size_t n = strlen(plain);
    if (n > len + 2 && n < PM_ELF_NEAR_LEN && strcmp(plain + n - len, name) == 0 &&
        memcmp(plain + n - len - 2, "::", 2) == 0)
        consider_near(out, plain, n + 1, plain, n);
}

static void keep_name(struct pm_elf_symbol *out, const char *s, uint64_t room) {
    size_t n = strnlen(s, room < PM_ELF_NAME_LEN ? room : PM_ELF_NAME_LEN);
    bool fits = n < PM_ELF_NAME_LEN && n < room;
    memcpy(out->name, fits ? s : "", fits ? n + 1 : 1);
    for (char *end = out->name; *end; end++)
        if (*end == '@' || pm_is_lto_suffix(end, strlen(end) + 1))
            *end-- = '\0';
}

// Compares every symbol of a table with the name. `plain`: compares C++ names instead of symbols.
static void scan_table(const struct pm_elf_table *t, const char *name, bool plain,
                       struct pm_elf_symbol *out) {
    size_t len = strlen(name);
    ElfW(Sym) s;
    for (uint64_t i = 1; i < t->count; i++) {
        memcpy(&s, t->syms + i * sizeof s, sizeof s);
        if (s.st_shndx == SHN_UNDEF || s.st_name == 0 || s.st_name >= t->strings_size)
            continue;
        const char *str = t->strings + s.st_name;
        uint64_t room = t->strings_size - s.st_name, before = out->value;
        bool object = ELF64_ST_TYPE(s.st_info) == STT_OBJECT && s.st_size != 0;
        char cxx[PM_ELF_NAME_LEN] = "";
        if (plain && !(object && pm_made_plain(str, room, cxx, sizeof cxx)))
            continue;
        if (plain ? strcmp(cxx, name) == 0 : name_matches(str, room, name, len)) {
            consider(out, &s, is_renamed(str, room) ? LOCAL : rank_of(&s));
            if (out->count == 1 && (out->value != before || out->name[0] == '\0'))
                keep_name(out, str, room);
        } else if (plain) {
            consider_scoped(out, cxx, name, len);
        } else if (object) {
            consider_near(out, str, room, name, len);
        }
    }
}

// Only where the name was not found: looks for those that it may be misspelt for.
static void scan_similar(const struct pm_elf_table *t, const char *name,
                         struct pm_elf_symbol *out) {
    ElfW(Sym) s;
    for (uint64_t i = 1; i < t->count && out->near_count < PM_ELF_NEAR_MAX; i++) {
        memcpy(&s, t->syms + i * sizeof s, sizeof s);
        if (s.st_shndx == SHN_UNDEF || s.st_name == 0 || s.st_name >= t->strings_size ||
            ELF64_ST_TYPE(s.st_info) != STT_OBJECT || s.st_size == 0)
            continue;
        const char *str = t->strings + s.st_name;
        uint64_t room = t->strings_size - s.st_name;
        char cxx[PM_ELF_NAME_LEN] = "";
        if (strnlen(str, room) == room)
            continue;
        const char *text = pm_made_plain(str, room, cxx, sizeof cxx) ? cxx : str;
        if (strlen(text) < PM_ELF_NEAR_LEN && pm_similar(text, name))
            consider_near(out, text, strlen(text) + 1, text, strlen(text));
    }
}

static void find_similar(const struct pm_elf *f, const char *name, unsigned tables,
                         struct pm_elf_symbol *out) {
    struct pm_elf_table t;
    if ((tables & PM_ELF_IN_SYMTAB) && pm_elf_table(f, SHT_SYMTAB, &t) > 0)
        scan_similar(&t, name, out);
    if ((tables & PM_ELF_IN_DYNSYM) && pm_elf_table(f, SHT_DYNSYM, &t) > 0)
        scan_similar(&t, name, out);
}

// ---- one name -----------------------------------------------------------------------------------

static void take_twin(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct pm_elf_symbol *out = arg;
    (void)symbol;
    if (out->verdict == PM_ELF_FOUND || out->verdict == PM_ELF_AMBIGUOUS)
        take_second(out, value, size);
}

static void take_part_of_twin(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct pm_elf_symbol *out = arg;
    if (out->verdict != PM_ELF_FOUND)
        return;
    take_second(out, value, size);
    memcpy(out->part, symbol, strnlen(symbol, sizeof out->part - 1));
}

int pm_elf_find(const struct pm_elf *f, const char *name, unsigned tables,
                struct pm_elf_symbol *out, struct pm_error *err) {
    static const struct {
        unsigned bit;
        uint32_t type;
    } order[] = {{PM_ELF_IN_SYMTAB, SHT_SYMTAB}, {PM_ELF_IN_DYNSYM, SHT_DYNSYM}};
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < 4 && out->verdict == PM_ELF_MISSING; i++) {
        struct pm_elf_table t;
        bool plain = i >= 2;
        int have = (tables & order[i % 2].bit) != 0 ? pm_elf_table(f, order[i % 2].type, &t) : 0;
        if (have < 0)
            return pm_fail(err, PM_OPERATIONAL, "truncated or damaged ELF file (symbol table)");
        if (have == 0)
            continue;
        if (order[i % 2].bit == PM_ELF_IN_SYMTAB || tables == PM_ELF_IN_DYNSYM)
            out->have_table = true; // .dynsym alone has only what is exported
        scan_table(&t, name, plain, out);
    }
    if (out->verdict == PM_ELF_MISSING && out->near_count == 0)
        find_similar(f, name, tables, out);
    if (tables & PM_ELF_IN_SYMTAB && out->verdict == PM_ELF_MISSING)
        pm_made_find_part(f, name, out->part, sizeof out->part);
    if (tables & PM_ELF_IN_SYMTAB && out->rank == LOCAL) {
        pm_made_each_twin(f, name, out->value, take_twin, out);
        pm_made_each_part_elsewhere(f, name, out->value, take_part_of_twin, out);
    }
    return PM_OK;
}
