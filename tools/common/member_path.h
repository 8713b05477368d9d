// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How a block is reached, as the program's types say it: "shop->orders->next->index". What they do
// not say is written as recovery/way.h does: "shop->data -> +16 of 64 bytes".
#ifndef PM_TOOLS_MEMBER_PATH_H
#define PM_TOOLS_MEMBER_PATH_H

#include <stddef.h>

#include "program_types.h"
#include "recovery/way.h"

// To a place in a block that pm_ways_find() has looked for. `types`: NULL if there are none. "":
// nothing is known of it.
void member_path(struct program_types *types, uint64_t block, uint64_t place, char *out,
                 size_t len);
// To a place in a root of the table.
void member_path_in_root(struct program_types *types, uint32_t root, uint64_t place, char *out,
                         size_t len);

#endif
