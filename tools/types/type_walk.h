// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makes a table of types: from a program's debug information, for roots by name.
#ifndef PM_TOOLS_TYPE_WALK_H
#define PM_TOOLS_TYPE_WALK_H

#include "roots/spec.h"
#include "tools/common/program_types.h"
#include "type_table.h"

// Writes the name of a root in the table: that of PMALLOC_ROOTS, but for when it is restored.
void type_root_text(const struct pm_spec *root, char out[PM_SPEC_TEXT_LEN]);
// Of a program whose debug information is loaded. False: no memory.
bool type_walk(struct program_types *program, const struct type_build *build,
               const struct pm_spec *roots, size_t count, struct type_table *out);

#endif
