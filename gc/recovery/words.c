// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "words.h"

void pm_words_count_stray(struct pm_stray *stray, const uint64_t *word, const uint64_t *end) {
    uint64_t found[2] = {0, 0};
    for (; word < end; word++)
        for (unsigned i = 0; i < 2; i++)
            found[i] += *word - stray->start[i] < stray->len[i];
    for (unsigned i = 0; i < 2; i++)
        if (found[i])
            __atomic_fetch_add(&stray->words[i], found[i], __ATOMIC_RELAXED);
}
