// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The decay curve: everything may stay at first, half at half time, nothing at the end, never more again.
#include "decay.h"

#include "check.h"

#define DECAY 10000u
#define STEP (DECAY / 200)

static void test_curve_of_one_burst(void) {
    pm_decay_init(DECAY);
    uint64_t limit = 0, last = 1000000, half = 0, now = 5000;
    CHECK(!pm_decay_tick(now, 0, &limit)); // starts the clock
    CHECK(!pm_decay_tick(now + STEP - 1, 1000000, &limit));
    now += STEP;
    CHECK(pm_decay_tick(now, 1000000, &limit));
    CHECK(limit >= 999990 && limit <= 1000000);
    for (unsigned i = 1; i <= 200; i++) {
        now += STEP;
        CHECK(pm_decay_tick(now, last, &limit));
        CHECK(limit <= last);
        last = limit;
        if (i == 100)
            half = limit;
    }
    CHECK(half > 480000 && half < 520000);
    CHECK_EQ(last, 0);
}

static void test_a_long_pause_forgets_everything(void) {
    pm_decay_init(DECAY);
    uint64_t limit = 1;
    pm_decay_tick(1, 0, &limit);
    CHECK(pm_decay_tick(1 + STEP, 500, &limit));
    CHECK(pm_decay_tick(1 + STEP + 3 * DECAY, 500, &limit));
    CHECK_EQ(limit, 0);
}

static void test_later_frees_have_their_own_time(void) {
    pm_decay_init(DECAY);
    uint64_t limit = 0, now = 1;
    pm_decay_tick(now, 0, &limit);
    pm_decay_tick(now += STEP, 1000, &limit);
    for (unsigned i = 0; i < 100; i++)
        pm_decay_tick(now += STEP, limit, &limit);
    uint64_t before = limit;
    pm_decay_tick(now += STEP, before + 1000, &limit);
    CHECK(limit > before + 900 && limit <= before + 1000);
}

static void test_zero_is_at_once(void) {
    pm_decay_init(0);
    uint64_t limit = 99;
    CHECK(pm_decay_tick(1, 1000, &limit));
    CHECK_EQ(limit, 0);
}

static void test_no_overflow(void) {
    pm_decay_init(DECAY);
    uint64_t limit = 0, most = 1ull << 28; // pages of the whole range
    pm_decay_tick(1, 0, &limit);
    pm_decay_tick(1 + STEP, most, &limit);
    CHECK(limit > most - most / 1000 && limit <= most);
}

int main(void) {
    RUN(curve_of_one_burst);
    RUN(a_long_pause_forgets_everything);
    RUN(later_frees_have_their_own_time);
    RUN(zero_is_at_once);
    RUN(no_overflow);
    return CHECK_DONE();
}
