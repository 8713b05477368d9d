// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How long threads stood still: counts by lengths, and what they tell of shares.
#include "check.h"
#include "media/journal/pauses.h"

static void test_bounds(void) {
    static const uint64_t microseconds[PM_PAUSE_BOUNDS] = {
        10,    20,    50,     100,    200,    500,     1000,    2000,    5000,    10000,
        20000, 50000, 100000, 200000, 500000, 1000000, 2000000, 5000000, 10000000};
    for (unsigned i = 0; i < PM_PAUSE_BOUNDS; i++)
        CHECK_EQ(pm_pause_bound(i), microseconds[i] * 1000);
    CHECK_EQ(pm_pause_bound(PM_PAUSE_BOUNDS), UINT64_MAX);
}

static void test_at_a_bound_and_beyond(void) {
    struct pm_pauses p = {0};
    for (unsigned i = 0; i < PM_PAUSE_BOUNDS; i++) {
        pm_pauses_add(&p, pm_pause_bound(i));
        pm_pauses_add(&p, pm_pause_bound(i) + 1);
    }
    CHECK_EQ(p.of[0], 1);
    for (unsigned i = 1; i < PM_PAUSE_BOUNDS; i++)
        CHECK_EQ(p.of[i], 2);
    CHECK_EQ(p.of[PM_PAUSE_BOUNDS], 1);
    CHECK_EQ(pm_pauses_count(&p), 2 * PM_PAUSE_BOUNDS);
    CHECK_EQ(p.longest_ns, pm_pause_bound(PM_PAUSE_BOUNDS - 1) + 1);
}

static void test_shares(void) {
    struct pm_pauses p = {0};
    CHECK_EQ(pm_pauses_at_most(&p, 50), 0);
    pm_pauses_add(&p, 7000); // alone: no bound tells more than the longest
    CHECK_EQ(pm_pauses_at_most(&p, 50), 7000);
    for (unsigned i = 0; i < 97; i++)
        pm_pauses_add(&p, 15000);
    CHECK_EQ(pm_pauses_at_most(&p, 1), 10000);
    CHECK_EQ(pm_pauses_at_most(&p, 50), 15000);
    pm_pauses_add(&p, 3000000);
    pm_pauses_add(&p, 30000000);
    CHECK_EQ(pm_pauses_count(&p), 100);
    CHECK_EQ(pm_pauses_at_most(&p, 50), 20000);
    CHECK_EQ(pm_pauses_at_most(&p, 98), 20000);
    CHECK_EQ(pm_pauses_at_most(&p, 99), 5000000);
    CHECK_EQ(pm_pauses_at_most(&p, 100), 30000000);
    CHECK_EQ(p.held_ns, 7000 + 97 * 15000 + 33000000);
    for (unsigned i = 0; i < 100; i++) // longer than all bounds
        pm_pauses_add(&p, 20000000000);
    CHECK_EQ(pm_pauses_at_most(&p, 99), 20000000000);
    CHECK_EQ(p.longest_ns, 20000000000);
}

int main(void) {
    RUN(bounds);
    RUN(at_a_bound_and_beyond);
    RUN(shares);
    return CHECK_DONE();
}
