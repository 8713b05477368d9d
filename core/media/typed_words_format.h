// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which words of a type's blocks are transient: each start stores 0 in them. In page 1 of the
// superblock, after pm_rebased, to its end. An entry has the words of one line of 64 bytes of the
// blocks. It is sealed, and by itself: one store changes it. 0: it is free.
#ifndef PM_TYPED_WORDS_FORMAT_H
#define PM_TYPED_WORDS_FORMAT_H

#include <stdint.h>

#define PM_TYPED_LINES 8u
#define PM_TYPED_LINE 64u                             // bytes
#define PM_TYPED_BYTES ((uint64_t)PM_TYPED_LINE << 8) // of a block, in which such words may be

struct pm_typed_words {
    // Sealed: the type << 16 | the line's number in the block << 8 | a bit for each of its words.
    uint64_t line[PM_TYPED_LINES];
};
_Static_assert(sizeof(struct pm_typed_words) == 64, "one line");

#endif
