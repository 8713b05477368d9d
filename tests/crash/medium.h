// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The fixed media of a heap, one or two, and what pmalloc-recover does with them: --make,
// --make --from and --grow. Meanwhile their first bytes of data have a shadow, too.
#ifndef PMALLOC_TESTS_CRASH_MEDIUM_H
#define PMALLOC_TESTS_CRASH_MEDIUM_H

#include "world.h"

// Lays out an empty heap, unless there is one.
void medium_need(void);
// The same over whatever is there; an earlier heap is lost.
void medium_make_anew(void);
// Puts the heap of the directory there.
void medium_copy(void);
// Each file, and then the heap on it, takes up so many bytes.
void medium_grow(uint64_t bytes, bool force);

#endif
