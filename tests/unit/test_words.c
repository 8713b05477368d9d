// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Words that may be pointers: four at a time as one by one.
#include "marking/words.h"

#include "check.h"
#include "roots/program.h"

static uint64_t seed = 7;
static uint64_t next(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

// A word near the range, at one of its ends, or anywhere.
static uint64_t some_word(uint64_t base, uint64_t len) {
    const uint64_t odd[] = {0,          base - 1,         base,       base + len - 1,
                            base + len, base - (1 << 20), UINT64_MAX, base << 32};
    switch (next() % 4) {
    case 0:
        return odd[next() % 8];
    case 1:
        return base + next() % (2 * len);
    case 2:
        return base + next() % len;
    default:
        return next() >> next() % 64;
    }
}

// No pointer is overlooked, and what lies far away is not near.
static void check_range(uint64_t base, uint64_t len) {
    struct pm_high_halves high = pm_high_halves(base, len, false);
    uint64_t word[5], span = 1ull << 32;
    while (base / span != (base + len - 1) / span)
        span *= 2;
    for (unsigned round = 0; round < 20000; round++) {
        for (unsigned i = 0; i < 5; i++)
            word[i] = some_word(base, len);
        const uint64_t *four = word + round % 2;
        unsigned near = pm_words_near(four, high);
        for (unsigned i = 0; i < 4; i++) {
            CHECK(four[i] - base >= len || near >> i & 1);
            CHECK((near >> i & 1) == (four[i] / span == base / span));
        }
        CHECK(near < 16);
    }
}

static void test_words_near(void) {
    const uint64_t base = 64ull << 40, gib = 1ull << 30;
    const uint64_t lengths[] = {1,           4096,    gib,        4 * gib - 1, 4 * gib,
                                4 * gib + 1, 5 * gib, 1000 * gib, 16384 * gib};
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_range(base, lengths[i]);
        check_range(base + 123 * gib, lengths[i]); // not as aligned as it is long
        check_range(0x7f1234567000, lengths[i]);
    }
}

static void test_stray_words(void) {
    struct pm_stray stray = {.start = {1000, 1ull << 40}, .len = {10, 1}};
    const uint64_t words[] = {999, 1000, 1009, 1010, 1ull << 40, 1 + (1ull << 40), 0};
    pm_stray_count(&stray, words, words + 7);
    CHECK(stray.words[0] == 2 && stray.words[1] == 1);
    pm_stray_count(&stray, words, words + 2);
    CHECK(stray.words[0] == 3 && stray.words[1] == 1 && !stray.counted);
}

int main(void) {
    RUN(words_near);
    RUN(stray_words);
    return CHECK_DONE();
}
