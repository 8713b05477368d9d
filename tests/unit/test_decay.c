// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The decay curve. All free pages may stay at first, half of them at half time, none at the end.
// The limit never rises again.
#include "base/decay.h"

#include "check.h"

#define DECAY 10000u
#define STEP (DECAY / 200)

static struct pm_decay decay;

static void test_curve_of_one_burst(void) {
    pm_decay_init(&decay, DECAY);
    uint64_t limit = 0, last = 1000000, half = 0, now = 5000;
    CHECK(!pm_decay_tick(&decay, now, 0, &limit)); // starts the clock
    CHECK(!pm_decay_tick(&decay, now + STEP - 1, 1000000, &limit));
    now += STEP;
    CHECK(pm_decay_tick(&decay, now, 1000000, &limit));
    CHECK(limit >= 999990 && limit <= 1000000);
    for (unsigned i = 1; i <= 200; i++) {
        now += STEP;
        CHECK(pm_decay_tick(&decay, now, last, &limit));
        CHECK(limit <= last);
        last = limit;
        if (i == 100)
            half = limit;
    }
    CHECK(half > 480000 && half < 520000);
    CHECK_EQ(last, 0);
}

static void test_a_long_pause_forgets_everything(void) {
    pm_decay_init(&decay, DECAY);
    uint64_t limit = 1;
    pm_decay_tick(&decay, 1, 0, &limit);
    CHECK(pm_decay_tick(&decay, 1 + STEP, 500, &limit));
    CHECK(pm_decay_tick(&decay, 1 + STEP + 3 * DECAY, 500, &limit));
    CHECK_EQ(limit, 0);
}

static void test_later_frees_have_their_own_time(void) {
    pm_decay_init(&decay, DECAY);
    uint64_t limit = 0, now = 1;
    pm_decay_tick(&decay, now, 0, &limit);
    pm_decay_tick(&decay, now += STEP, 1000, &limit);
    for (unsigned i = 0; i < 100; i++)
        pm_decay_tick(&decay, now += STEP, limit, &limit);
    uint64_t before = limit;
    pm_decay_tick(&decay, now += STEP, before + 1000, &limit);
    CHECK(limit > before + 900 && limit <= before + 1000);
}

static void test_zero_is_at_once(void) {
    pm_decay_init(&decay, 0);
    uint64_t limit = 99;
    CHECK(pm_decay_tick(&decay, 1, 1000, &limit));
    CHECK_EQ(limit, 0);
}

// The decay time is kept even where a step is under a millisecond, or no whole number of
// milliseconds.
static void test_any_time_is_kept(void) {
    static const unsigned times[] = {1, 2, 7, 50, 100, 199, 200, 201, 250, 399, 1000};
    for (size_t t = 0; t < sizeof times / sizeof times[0]; t++) {
        uint64_t limit = 0, now = 1000003, free_pages = 1000000;
        pm_decay_init(&decay, times[t]);
        CHECK(!pm_decay_tick(&decay, now, 0, &limit));
        uint64_t freed = now += 1 + times[t] / 200;
        CHECK(pm_decay_tick(&decay, now, free_pages, &limit));
        CHECK(limit > 999000); // nothing has decayed yet
        CHECK(!pm_decay_tick(&decay, now, limit, &limit));
        while (free_pages && now < freed + 5000) {
            free_pages = limit;
            pm_decay_tick(&decay, ++now, free_pages, &limit);
            CHECK(limit <= free_pages);
            free_pages = limit;
            if (times[t] >= 50 && now == freed + times[t] / 2)
                CHECK(free_pages > 440000 && free_pages < 560000);
        }
        CHECK(now - freed <= times[t] + 2 && now - freed + times[t] / 50 + 2 >= times[t]);
    }
}

static void test_no_overflow(void) {
    pm_decay_init(&decay, DECAY);
    uint64_t limit = 0, most = 1ull << 28; // pages of the whole range
    pm_decay_tick(&decay, 1, 0, &limit);
    pm_decay_tick(&decay, 1 + STEP, most, &limit);
    CHECK(limit > most - most / 1000 && limit <= most);
}

int main(void) {
    RUN(curve_of_one_burst);
    RUN(a_long_pause_forgets_everything);
    RUN(later_frees_have_their_own_time);
    RUN(zero_is_at_once);
    RUN(any_time_is_kept);
    RUN(no_overflow);
    return CHECK_DONE();
}
