// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// String literals that a new build lacks, and that the heap leads to: they become a block of it.
//
// That block is made, and durable, before any word leads to it, by an opening of the heap that is
// given up again. Until the commit that changes the words it is a leak, which a cut leaves to the
// next collection. From then on the words keep it alive. Another process may open the heap in
// between, and collects it: then it is made once more.
#ifndef PM_COPIES_H
#define PM_COPIES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

#define PM_COPIES_BYTES ((uint32_t)64 << 10)

struct pm_copies {
    uint64_t at;    // the block; 0: there is none yet
    uint64_t opens; // pm_state.opens when it was made
    uint32_t count; // of the strings
    uint32_t bytes; // of all of them, each behind its length
    char text[PM_COPIES_BYTES];
};

// Adds the string, unless it is there. False: there is no room for it.
bool pm_copy_add(struct pm_copies *c, const char *text, uint64_t size);
// Forgets all of it if the heap was opened since the block was made.
void pm_copies_check(struct pm_copies *c);
// Where the block has it; 0: not, or there is no block.
uint64_t pm_copy_of(const struct pm_copies *c, const char *text, uint64_t size);
// Makes the block, in a heap that is open and mapped: recovers it, as each opening would. Called in
// a process of its own, whose end is a kill.
int pm_copies_make(struct pm_copies *c, struct pm_error *err);

#endif
