// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that was loaded while the program runs, elsewhere than it lay before, or in another
// build: words of the heap that lead to it are changed now. Before, nobody could know where to.
//
// All blocks and captured roots are looked at, also what nothing reaches: nothing but this library
// has ever lain at the addresses that are looked for, since the process was started. Other threads
// may store meanwhile: each word is changed by compare-and-swap. Then the record of the next
// generation comes into force. Under PMALLOC_COMMIT both come with one commit: the caller has its
// lock. Else a kill in between leaves words of both sorts, and a record that has both places.
#ifndef PM_LATE_WORDS_H
#define PM_LATE_WORDS_H

#include <stdint.h>

#include "verdict.h"

struct pm_late_words {
    uint64_t changed, unsure;
    char why[PM_VERDICT_WHY]; // of one that is unsure
};

// After pm_record_note(). Looks once for each object.
void pm_late_words(struct pm_late_words *done);

#endif
