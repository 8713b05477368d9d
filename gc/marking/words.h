// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the words of the heap look like, before anything is known of where they point to.
#ifndef PM_WORDS_H
#define PM_WORDS_H

#include <emmintrin.h>
#include <stdbool.h>
#include <stdint.h>

// Under `mask`, the high halves of all addresses in a range have this value. Those of others near
// by may have it, too.
struct pm_high_halves {
    uint32_t mask, value;
};

// For a range of `len` bytes, not 0. `tagged`: whatever the upper 16 bits are.
static inline struct pm_high_halves pm_high_halves(uint64_t base, uint64_t len, bool tagged) {
    uint64_t differ = (base ^ (base + len - 1)) >> 32;
    uint32_t mask = differ ? (uint32_t) - (2ull << (63 - __builtin_clzll(differ))) : UINT32_MAX;
    mask &= tagged ? 0xffff : UINT32_MAX;
    return (struct pm_high_halves){mask, (uint32_t)(base >> 32) & mask};
}

// Returns which of four words may point into the heap: bit i is for word i. Most words do not, so
// this is a test of four at a time.
static inline unsigned pm_words_near(const uint64_t *word, struct pm_high_halves high) {
    const float *half = (const float *)(const void *)word;
    __m128 odd =
        _mm_shuffle_ps(_mm_loadu_ps(half), _mm_loadu_ps(half + 4), _MM_SHUFFLE(3, 1, 3, 1));
    __m128i masked = _mm_and_si128(_mm_castps_si128(odd), _mm_set1_epi32((int)high.mask));
    __m128i equal = _mm_cmpeq_epi32(masked, _mm_set1_epi32((int)high.value));
    return (unsigned)_mm_movemask_ps(_mm_castsi128_ps(equal));
}

#endif
