// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which variable of a program a name means: by the program's own symbols; if it is stripped, by
// those of its debug file; and by the debug information, where a linker has renamed a symbol.
#ifndef PM_TOOLS_ROOT_VARIABLE_H
#define PM_TOOLS_ROOT_VARIABLE_H

#include "program_types.h"
#include "roots/elf_find.h"

struct root_variable {
    char name[PM_ROOT_NAME_LEN]; // as the user has written it; if exported, as the library finds it
    const char *path;            // what is behind it: ".db", or ""
    bool found;
    bool exported; // the library will find it by its name
    uint64_t address, size;
    char near[PM_ELF_NEAR_LEN]; // not found: a name that may be meant, or ""
    bool apart;                 // not found: `near` is what the compiler has made of the variable
};

// Looks for v->name. Fails if that is no variable, is several, or cannot be a root.
int root_variable_find(struct program_types *t, struct root_variable *v, struct pm_error *err);
// Says that there is none.
int root_variable_missing(struct program_types *t, const struct root_variable *v,
                          struct pm_error *err);

#endif
