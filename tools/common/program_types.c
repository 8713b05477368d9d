// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "program_types.h"

#include <stdio.h>
#include <string.h>

#include "info_print.h"
#include "roots/elf_find.h"

bool program_is_recorded(const struct pm_elf *f, const struct pm_program *on_record) {
    uint8_t id[PM_BUILD_ID_MAX] = {0};
    return pm_elf_build_id(f, id) == on_record->build_id_len &&
           memcmp(id, on_record->build_id, sizeof id) == 0;
}

int program_types_of(struct program_types *t, const char *path, struct pm_error *err) {
    memset(t, 0, sizeof *t);
    snprintf(t->path, sizeof t->path, "%s", path);
    if (pm_elf_open(&t->program, path, err) != PM_OK)
        return err->status;
    return PM_OK;
}

bool program_types_load(struct program_types *t) {
    if (!t->looked_for)
        t->types = dw_open(t->path, &t->program);
    t->looked_for = true;
    return t->types != NULL;
}

const struct pm_elf *program_types_apart(struct program_types *t) {
    char path[DWARF_PATH];
    struct pm_error ignored;
    if (!t->looked_apart && !pm_elf_has_symtab(&t->program) &&
        dw_debug_file(&t->program, path, sizeof path))
        pm_elf_open(&t->apart, path, &ignored);
    t->looked_apart = true;
    return t->apart.map ? &t->apart : NULL;
}

int program_types_missing(const struct program_types *t, struct pm_error *err) {
    char apart[DWARF_PATH] = "no build id";
    if (pm_elf_has_symtab(&t->program))
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s has no types: build it with -g, or install its debug symbols",
                       t->path);
    bool named = dw_debug_file(&t->program, apart, sizeof apart);
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s has no types: build it with -g, or install its debug symbols (a -dbgsym "
                   "package; %s%s)",
                   t->path, named ? "there is no " : "it has ", apart);
}

int program_types_now(struct program_types *t, const char *heap, struct pm_error *err) {
    struct pm_program on_record;
    if (!info_program(&on_record))
        return pm_fail(err, PM_OPERATIONAL, "%s names no program, so the types are not known",
                       heap);
    if (program_types_of(t, on_record.path, err) != PM_OK)
        return pm_fail_in(err, "the program of %s", heap);
    t->base = on_record.main_base;
    return PM_OK;
}

int program_types_open(struct program_types *t, const char *heap, struct pm_error *err) {
    struct pm_program on_record;
    if (program_types_now(t, heap, err) != PM_OK)
        return err->status;
    if (!info_program(&on_record) || !program_is_recorded(&t->program, &on_record))
        return pm_fail(err, PM_OPERATIONAL,
                       "%s is another build than the one that last used %s, and its types may be "
                       "others: put that build there",
                       t->path, heap);
    return program_types_load(t) ? PM_OK : program_types_missing(t, err);
}

// Where the program has a root. It says so by its name: its address is that of the last start, and
// it may have got another name since.
static uint64_t address_of(const struct program_types *t, const struct pm_root *root) {
    struct pm_elf_symbol sym;
    struct pm_error ignored;
    if (!*root->name)
        return root->spec_offset;
    if (pm_elf_find(&t->program, root->name, PM_ELF_IN_SYMTAB | PM_ELF_IN_DYNSYM, &sym, &ignored) ==
            PM_OK &&
        sym.verdict == PM_ELF_FOUND)
        return sym.value + root->spec_offset;
    return root->address - t->base;
}

bool program_variable(struct program_types *t, const struct pm_root *root, uint64_t place,
                      char *name, size_t size, uint64_t *type, uint64_t *offset) {
    struct dwarf_entry variable;
    if (!t->types || root->kind == PM_ROOT_OBJECT || root->object[0] || root->part)
        return false;
    uint64_t at = address_of(t, root) + place;
    if (!dw_variable_around(t->types, at, &variable) ||
        (root->kind == PM_ROOT_SYMBOL && dw_size(t->types, variable.type) > root->length))
        return false;
    if (*root->name)
        snprintf(name, size, "%s", root->name);
    else
        dw_full_name(t->types, &variable, name, size);
    *type = variable.type;
    *offset = at - variable.address;
    return true;
}
