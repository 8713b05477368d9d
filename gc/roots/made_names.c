// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "made_names.h"

#include <string.h>

#include "cxxname.h"

// Every compiler puts its name into .comment.
bool pm_made_by_clang(const struct pm_elf *f) {
    ElfW(Shdr) s;
    for (size_t i = 0; pm_elf_shdr(f, i, &s); i++) {
        if (strcmp(pm_elf_section_name(f, &s), ".comment") != 0)
            continue;
        const unsigned char *text = pm_elf_bytes(f, s.sh_offset, s.sh_size);
        return text != NULL && memmem(text, s.sh_size, "clang", 5) != NULL;
    }
    return false;
}

// ---- other names --------------------------------------------------------------------------------

bool pm_is_lto_suffix(const char *suffix, uint64_t room) {
    static const char *const made[] = {".lto_priv.", ".llvm."};
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        size_t len = strlen(made[i]), at = len;
        if (room <= len || memcmp(suffix, made[i], len) != 0)
            continue;
        while (at < room && suffix[at] >= '0' && suffix[at] <= '9')
            at++;
        return at > len && at < room && suffix[at] == '\0';
    }
    return false;
}

bool pm_made_plain(const char *symbol, uint64_t room, char *out, size_t len) {
    char head[PM_ELF_NAME_LEN];
    const char *dot = memchr(symbol, '.', strnlen(symbol, room));
    size_t n = dot ? (size_t)(dot - symbol) : 0;
    if (dot == NULL || n >= sizeof head || !pm_is_lto_suffix(dot, room - n))
        return pm_cxxname_plain(symbol, room, out, len);
    memcpy(head, symbol, n);
    head[n] = '\0';
    return pm_cxxname_plain(head, sizeof head, out, len);
}

// What is behind the name in a symbol, which may be a C++ name; NULL: the symbol is of another one.
static const char *behind_name(const char *s, const char *name) {
    char symbol[PM_ELF_NAME_LEN], cxx[PM_ELF_NAME_LEN];
    size_t len = strlen(name), head = strcspn(s, ".");
    if (strncmp(s, name, len) == 0)
        return s + len;
    if (head >= sizeof symbol)
        return NULL;
    memcpy(symbol, s, head);
    symbol[head] = '\0';
    return pm_cxxname_plain(symbol, sizeof symbol, cxx, sizeof cxx) && strcmp(cxx, name) == 0
               ? s + head
               : NULL;
}

// ---- parts --------------------------------------------------------------------------------------

// clang takes a variable apart whose address nobody has: each member that is used is a variable of
// its own, NAME.0, NAME.1. gcc has such a name for a whole static of a function. Where one
// allocation alone is stored in a pointer, clang has that memory in the program, NAME.body, and
// remembers by NAME.init that the program has asked for it; the data is then on no heap.
static bool is_part(const char *suffix, bool clang) {
    bool sure = clang;
    size_t len;
    if (*suffix != '.')
        return false;
    for (; *suffix == '.'; suffix += len) {
        len = strcspn(++suffix, ".");
        bool word = len == 4 && (memcmp(suffix, "init", 4) == 0 || memcmp(suffix, "body", 4) == 0);
        if (!word && (len == 0 || strspn(suffix, "0123456789") != len))
            return false;
        sure = sure || word;
    }
    return sure;
}

struct part_search {
    const char *name;
    bool clang;
    char *part;
    size_t size;
};

static void take_part(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct part_search *q = arg;
    const char *suffix = *q->part ? NULL : behind_name(symbol, q->name);
    (void)value, (void)size;
    if (suffix != NULL && is_part(suffix, q->clang) && strlen(symbol) < q->size)
        memcpy(q->part, symbol, strlen(symbol) + 1);
}

void pm_made_find_part(const struct pm_elf *f, const char *name, char *part, size_t size) {
    struct part_search q = {name, pm_made_by_clang(f), part, size};
    struct pm_error ignored;
    *part = '\0';
    pm_elf_each_variable(f, PM_ELF_IN_SYMTAB, take_part, &q, &ignored);
}

// ---- twins --------------------------------------------------------------------------------------

bool pm_made_is_whole(const char *file) {
    return file == NULL || *file == '\0' || strcmp(file, "ld-temp.o") == 0;
}

// The local symbols of one object: those from one name of a file to the next.
struct block {
    const char *file;
    uint64_t from, end;
    bool has_it; // the variable that was found
};

// Takes the next block from symbol i on. false: there is none.
static bool next_block(const struct pm_elf_table *t, uint64_t i, const char *name, uint64_t value,
                       struct block *b) {
    ElfW(Sym) s;
    for (b->from = 0; b->from == 0; i++) {
        if (i >= t->count)
            return false;
        b->file = pm_elf_symbol_at(t, i, &s);
        b->from = ELF64_ST_TYPE(s.st_info) == STT_FILE ? i + 1 : 0;
    }
    b->has_it = false;
    for (b->end = b->from; b->end < t->count; b->end++) {
        const char *symbol = pm_elf_symbol_at(t, b->end, &s);
        if (ELF64_ST_TYPE(s.st_info) == STT_FILE || ELF64_ST_BIND(s.st_info) != STB_LOCAL)
            break;
        const char *suffix = symbol && s.st_value == value ? behind_name(symbol, name) : NULL;
        b->has_it |= suffix && *suffix == '\0';
    }
    return true;
}

// Calls `visit` for the numbered ones of a block.
static void each_numbered(const struct pm_elf_table *t, const struct block *b, const char *name,
                          pm_elf_variable *visit, void *arg) {
    ElfW(Sym) s;
    for (uint64_t i = b->from; i < b->end; i++) {
        const char *symbol = pm_elf_symbol_at(t, i, &s);
        const char *suffix = symbol && s.st_size != 0 && s.st_shndx != SHN_UNDEF &&
                                     ELF64_ST_TYPE(s.st_info) == STT_OBJECT
                                 ? behind_name(symbol, name)
                                 : NULL;
        if (suffix != NULL && is_part(suffix, true))
            visit(symbol, s.st_value, s.st_size, arg);
    }
}

void pm_made_each_twin(const struct pm_elf *f, const char *name, uint64_t value,
                       pm_elf_variable *visit, void *arg) {
    struct pm_elf_table t;
    struct block b;
    if (!pm_made_by_clang(f) || pm_elf_table(f, SHT_SYMTAB, &t) <= 0)
        return;
    // In the file of one source gcc numbers statics of functions, which have no other name.
    for (uint64_t i = 1; next_block(&t, i, name, value, &b); i = b.end)
        if (b.has_it && pm_made_is_whole(b.file))
            each_numbered(&t, &b, name, visit, arg);
}

void pm_made_each_part_elsewhere(const struct pm_elf *f, const char *name, uint64_t value,
                                 pm_elf_variable *visit, void *arg) {
    struct pm_elf_table t;
    struct block b;
    bool whole = false;
    if (!pm_made_by_clang(f) || pm_elf_table(f, SHT_SYMTAB, &t) <= 0)
        return;
    for (uint64_t i = 1; next_block(&t, i, name, value, &b); i = b.end)
        whole |= b.has_it && pm_made_is_whole(b.file);
    // Between the blocks that LTO makes nothing tells a part from a variable of another name. And
    // gcc has made the start of each program, with a static of a function, completed.0.
    for (uint64_t i = 1; next_block(&t, i, name, value, &b); i = b.end)
        if (!b.has_it && !(whole && pm_made_is_whole(b.file)) &&
            !(b.file != NULL && strcmp(b.file, "crtstuff.c") == 0))
            each_numbered(&t, &b, name, visit, arg);
}
