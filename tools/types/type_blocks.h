// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How many blocks of a heap may have a type: those of its size.
#ifndef PM_TOOLS_TYPE_BLOCKS_H
#define PM_TOOLS_TYPE_BLOCKS_H

#include <stddef.h>
#include <stdint.h>

// Writes "; 10,233 live blocks have its size (48 bytes)", or "" if there are none, or if
// counting would take long or is not possible. Returns `out`. It opens the heap, and only reads.
const char *type_blocks_text(const char *heap, uint64_t size, char *out, size_t room);

#endif
