// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A table from numbers to numbers.
#ifndef PM_TOOLS_NUMBERS_H
#define PM_TOOLS_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

// All zero: it is empty.
struct numbers {
    uint64_t *key; // never 0
    uint32_t *value;
    size_t room, count;
};

// The value of a key, which is not 0; 0: there is none.
uint32_t numbers_get(const struct numbers *n, uint64_t key);
// Where the value of a key is, until the next call; it is 0 if the key is new. NULL: no memory.
uint32_t *numbers_put(struct numbers *n, uint64_t key);

#endif
