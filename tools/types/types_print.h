// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --types: the heap's table of types.
#ifndef PM_TOOLS_TYPES_PRINT_H
#define PM_TOOLS_TYPES_PRINT_H

#include <stdbool.h>

// Of the heap of this name, which may be in use. Returns an exit status.
int types_print(const char *heap, bool json);

// A line on standard error, if the table of the open heap is damaged. The heap is not damaged then.
void types_say_damage(const char *heap);

#endif
