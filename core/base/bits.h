// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Sets of small numbers: bit i % 64 of word i / 64 stands for i.
#ifndef PM_BITS_H
#define PM_BITS_H

#include <stdbool.h>
#include <stdint.h>

static inline bool pm_bit(const uint64_t *bits, unsigned i) { return bits[i / 64] >> i % 64 & 1; }
static inline void pm_bit_set(uint64_t *bits, unsigned i) { bits[i / 64] |= 1ull << i % 64; }
static inline void pm_bit_clear(uint64_t *bits, unsigned i) { bits[i / 64] &= ~(1ull << i % 64); }

static inline unsigned pm_bits_count(const uint64_t *bits, unsigned words) {
    unsigned count = 0;
    for (unsigned w = 0; w < words; w++)
        count += (unsigned)__builtin_popcountll(bits[w]);
    return count;
}

// Removes n and every greater number from the word that has n - 1: for a set of the numbers below
// n.
static inline void pm_bits_trim(uint64_t *bits, unsigned n) {
    if (n % 64)
        bits[n / 64] &= (1ull << n % 64) - 1;
}

// Runs the body for each i in the set, by rising i.
#define PM_EACH_BIT(i, bits, words)                                                                \
    for (unsigned i##_w = 0; i##_w < (words); i##_w++)                                             \
        for (uint64_t i##_b = (bits)[i##_w]; i##_b; i##_b &= i##_b - 1)                            \
            for (unsigned i = i##_w * 64 + (unsigned)__builtin_ctzll(i##_b), i##_1 = 1; i##_1;     \
                 i##_1 = 0)

#endif
