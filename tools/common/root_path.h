// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Roots that are named by member paths, such as server.db or table[3].head@idle, and roots of a
// stripped program whose names its debug file has. The library knows offsets only, so these names
// become SYMBOL+OFFSET/LENGTH, or +OFFSET/LENGTH where the program has no such symbol.
#ifndef PM_TOOLS_ROOT_PATH_H
#define PM_TOOLS_ROOT_PATH_H

#include "program_types.h"
#include "roots/spec.h"

// Where a member is in the program, and its type; 0: the name was no member path.
struct root_place {
    uint64_t address, size, type;
};
// Reads one root as pm_spec_parse_one() does, or as a member path of a variable of the program.
// `place` may be NULL.
int root_path_read(struct program_types *t, const char *text, size_t len, struct pm_spec *out,
                   struct root_place *place, struct pm_error *err);
// Whether all of PMALLOC_ROOTS can be read, as far as that is known without the program.
int root_paths_check(const char *value, struct pm_error *err);
// Reads it with the program. *out is a value without member paths, or NULL if it has none.
int root_paths_read(const char *value, const char *program, char **out, struct pm_error *err);

// What a user calls a root of the open heap: as pmalloc-info lists it, perhaps without when it is
// restored, or by a member path of its program. Writes how pmalloc-info lists it.
int root_path_in_heap(const char *heap, const char *text, char out[PM_SPEC_TEXT_LEN],
                      struct pm_error *err);
// A new name for a root: of the program as it is now.
int root_path_of_heap(const char *heap, const char *text, char out[PM_SPEC_TEXT_LEN],
                      struct pm_error *err);

#endif
