// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "root_variable.h"

#include <stdio.h>
#include <string.h>

#include "member_find.h"
#include "roots/spec.h"

enum { BOTH = PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM };

static int no_variable(const struct pm_elf_symbol *sym, const char *name, struct pm_error *err) {
    switch (sym->verdict) {
    case PM_ELF_FUNCTION:
        return pm_fail(err, PM_USAGE, "%s is a function, not a variable", name);
    case PM_ELF_TLS:
        return pm_fail(err, PM_USAGE,
                       "%s is thread-local, so there is one in each thread; only plain globals can "
                       "be roots",
                       name);
    default:
        return pm_fail(err, PM_USAGE, "%s is no variable with a size: name +0x%lx/LENGTH", name,
                       (unsigned long)sym->value);
    }
}

// Where the member of each of two variables would lie.
static int several(struct program_types *t, const struct root_variable *v, uint64_t first,
                   uint64_t second, unsigned count, const char *part, struct pm_error *err) {
    char place[2][64] = {"", ""};
    uint64_t address[2] = {first, second};
    for (unsigned i = 0; i < 2; i++) {
        struct dwarf_entry e;
        struct member m;
        struct pm_error ignored;
        if (program_types_load(t) && dw_variable(t->types, address[i], &e) &&
            member_find(t->types, e.type, v->name, v->path, &m, &ignored) == PM_OK)
            snprintf(place[i], sizeof place[i], "+0x%lx/%lu",
                     (unsigned long)(address[i] + m.offset), (unsigned long)m.size);
        else
            snprintf(place[i], sizeof place[i], "none in that at 0x%lx", (unsigned long)address[i]);
    }
    if (*part)
        return pm_fail(err, PM_USAGE,
                       "the compiler has made %s of another variable %s in %.200s; declare that "
                       "one __attribute__((used)), and compile it again (what is meant in the one "
                       "that is whole is %s: that range can be named)",
                       part, v->name, t->path, place[0]);
    return pm_fail(err, PM_USAGE,
                   "%u variables in %.200s have the name %s (what is meant is %s, %s%s); name one "
                   "of these ranges",
                   count, t->path, v->name, place[0], place[1], count > 2 ? ", ..." : "");
}

// A static of a C++ function is restored with the guard that says whether it was constructed. The
// library finds that by the variable's symbol.
static int check_guard(const struct pm_elf *in, const char *symbol, const struct root_variable *v,
                       struct pm_error *err) {
    struct pm_elf_symbol guard;
    struct pm_error ignored;
    char text[PM_ELF_NAME_LEN + 4];
    if (strncmp(symbol, "_Z", 2) != 0 || (v->exported && !*v->path))
        return PM_OK;
    snprintf(text, sizeof text, "_ZGV%.*s", PM_ELF_NAME_LEN - 1, symbol + 2);
    if (pm_elf_find(in, text, BOTH, &guard, &ignored) != PM_OK || guard.verdict == PM_ELF_MISSING)
        return PM_OK;
    if (!v->exported)
        return pm_fail(err, PM_USAGE,
                       "%s is a static of a function, which is restored with its guard; the "
                       "library cannot find that in a stripped program",
                       v->name);
    return pm_fail(err, PM_USAGE,
                   "%s is a static of a function, which is restored with its guard, so not in "
                   "part: name %s",
                   v->name, v->name);
}

// ---- by symbols ---------------------------------------------------------------------------------

static int find_symbol(struct program_types *t, const struct pm_elf *in, struct root_variable *v,
                       struct pm_error *err) {
    struct pm_elf_symbol sym;
    if (pm_elf_find(in, v->name, BOTH, &sym, err) != PM_OK)
        return pm_fail_in(err, "%.300s", t->path);
    v->found = sym.verdict != PM_ELF_MISSING;
    v->exported = in == &t->program;
    v->apart = !v->found && *sym.part;
    if (v->apart || (!v->found && sym.near_count))
        snprintf(v->near, sizeof v->near, "%s", v->apart ? sym.part : sym.near_name[0]);
    // What is not a variable, or several ones, the library says of its own symbols.
    if (!v->found || (v->exported && !*v->path && sym.verdict != PM_ELF_FOUND))
        return PM_OK;
    if (sym.verdict == PM_ELF_AMBIGUOUS)
        return several(t, v, sym.value, sym.second_value, sym.count, sym.part, err);
    if (sym.verdict != PM_ELF_FOUND)
        return no_variable(&sym, v->name, err);
    v->address = sym.value;
    v->size = sym.size;
    return check_guard(in, sym.name, v, err);
}

// ---- by debug information -----------------------------------------------------------------------

// Which name the program's own tables have for what lies there.
struct symbol_at {
    const struct pm_elf *program;
    struct root_variable *v;
};

static void compare_symbol(const char *symbol, uint64_t value, uint64_t size, void *arg) {
    struct symbol_at *s = arg;
    struct pm_elf_symbol sym;
    struct pm_spec spec;
    struct pm_error ignored;
    if (s->v->exported || value != s->v->address || strlen(symbol) >= sizeof s->v->name ||
        pm_spec_parse_one(symbol, strlen(symbol), &spec, &ignored) != PM_OK || spec.when ||
        pm_elf_find(s->program, symbol, BOTH, &sym, &ignored) != PM_OK ||
        sym.verdict != PM_ELF_FOUND || sym.value != value)
        return;
    s->v->exported = true;
    s->v->size = size;
    snprintf(s->v->name, sizeof s->v->name, "%s", symbol);
}

static int find_by_types(struct program_types *t, struct root_variable *v, struct pm_error *err) {
    struct dwarf_entry e, second;
    struct pm_error ignored;
    struct symbol_at s = {&t->program, v};
    unsigned count = program_types_load(t) ? dw_find(t->types, v->name, &e, &second) : 0;
    if (count > 1)
        return several(t, v, e.address, second.address, count, "", err);
    v->found = count != 0;
    v->exported = false;
    if (count == 0)
        return PM_OK;
    v->address = e.address;
    v->size = dw_size(t->types, e.type);
    pm_elf_each_variable(&t->program, PM_ELF_IN_SYMTAB, compare_symbol, &s, &ignored);
    if (!v->exported)
        pm_elf_each_variable(&t->program, PM_ELF_IN_DYNSYM, compare_symbol, &s, &ignored);
    return PM_OK;
}

// ---- all of it ----------------------------------------------------------------------------------

int root_variable_find(struct program_types *t, struct root_variable *v, struct pm_error *err) {
    const struct pm_elf *apart;
    int status = find_symbol(t, &t->program, v, err);
    if (status == PM_OK && !v->found && (apart = program_types_apart(t)) != NULL)
        status = find_symbol(t, apart, v, err);
    // A name without a member behind it may well be a library's: types are not loaded for that.
    return status == PM_OK && !v->found && *v->path ? find_by_types(t, v, err) : status;
}

int root_variable_missing(struct program_types *t, const struct root_variable *v,
                          struct pm_error *err) {
    if (v->apart)
        return pm_fail(err, PM_USAGE,
                       "no variable %s in %.200s, for the compiler has made %s of it; declare it "
                       "__attribute__((used)), and compile it again",
                       v->name, t->path, v->near);
    if (*v->near)
        return pm_fail(err, PM_USAGE, "no variable %s in %.200s; did you mean %s?", v->name,
                       t->path, v->near);
    if (!program_types_load(t))
        return program_types_missing(t, err);
    return pm_fail(err, PM_USAGE,
                   "no variable %s in %.200s (`pmalloc-run --roots` lists them; members of "
                   "libraries' variables are named LIBRARY:SYMBOL+OFFSET/LENGTH)",
                   v->name, t->path);
}
