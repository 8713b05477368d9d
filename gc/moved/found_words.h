// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The words of live blocks and of restored roots that lead into objects which have moved.
#ifndef PM_FOUND_WORDS_H
#define PM_FOUND_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

// Where a word is: an address in the heap, or with this bit an offset in the file `roots`.
#define PM_WORD_IN_ROOT (1ull << 63)

struct pm_range_of_words {
    uint64_t start, end;
};
struct pm_found_words {
    uint64_t *where; // in order, each once
    uint64_t count;
    const char *images; // of the roots; NULL: there are none
    uint64_t images_at; // where they begin in the file
    bool elsewhere;     // a slot, or a publish that was not finished, has such a word, too
};

// Marks the heap, which is open and mapped and which this process has not recovered, and changes
// nothing. Words with values in one of the ranges are found.
int pm_words_find(const struct pm_range_of_words *range, unsigned ranges, struct pm_found_words *f,
                  struct pm_error *err);
static inline const uint64_t *pm_word_at(const struct pm_found_words *f, uint64_t where) {
    uint64_t image = (uint64_t)(uintptr_t)f->images + (where & ~PM_WORD_IN_ROOT) - f->images_at;
    return (const uint64_t *)(uintptr_t)(where & PM_WORD_IN_ROOT ? image : where);
}

#endif
