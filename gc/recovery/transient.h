// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_TRANSIENT: words of blocks that lead into what the last run had mapped beside its heap
// (media/outside.h), and which is gone, become NULL.
//
//   1 a recovery has swept                  the blocks in use are known
//   2 each such word becomes 0, durable     one word by itself: any subset of them may be durable
//   3 the ranges on record are forgotten    pm_outside_begin()
//
// A cut before 3 leaves the ranges, and the next recovery finds the words that are left. Roots are
// not changed: they are variables of the program, which it can set itself.
#ifndef PM_TRANSIENT_H
#define PM_TRANSIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/options.h"
#include "media/outside_format.h"

// Whether words of blocks that lead into a range of this kind become NULL at a start.
static inline bool pm_transient_is(uint32_t kind) {
    uint64_t how = pm_options.transient.number;
    return how == PM_TRANSIENT_CLEAR || (how == PM_TRANSIENT_STACKS && kind <= PM_OUTSIDE_THREADS);
}

static inline bool pm_transient_wanted(void) {
    return pm_options.transient.number != PM_TRANSIENT_KEEP;
}

// The same of a word that leads into it. Where the other threads' stacks lie is known only about;
// files lie there, too, and under `stacks` the program maps those again.
bool pm_transient_takes(uint32_t kind, uint64_t word);

// Step 2 on at most `threads` threads. Returns how many words that were. Not `write`: it
// counts them.
uint64_t pm_transient_clear(unsigned threads, bool write);

#endif
