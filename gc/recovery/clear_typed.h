// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Stores 0 in the words of a type's blocks that the program has declared transient
// (typed_words.h), before anything is marked: what only they reach is garbage. All blocks of
// the type are taken, in use or free: nobody knows yet, and the bytes of free ones are nobody's.
#ifndef PM_CLEAR_TYPED_H
#define PM_CLEAR_TYPED_H

#include <stdint.h>

// Extents and slabs have been adopted, and the holes are known. All is durable on return; a cut
// before leaves words that the next start clears. Returns how many were not 0.
uint64_t pm_clear_typed(void);

#endif
