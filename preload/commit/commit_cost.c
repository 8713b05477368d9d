// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_cost.h"

#include <stdatomic.h>
#include <time.h>

#include "base/message.h"

// Changed with the commit lock; read at any time.
static struct {
    _Atomic uint64_t made, pages, took;    // commits
    _Atomic uint64_t holds, held, longest; // threads; nanoseconds
} cost;

static void add(_Atomic uint64_t *to, uint64_t more) {
    atomic_fetch_add_explicit(to, more, memory_order_relaxed);
}

static uint64_t get(_Atomic uint64_t *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}

uint64_t pm_commit_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void pm_commit_was_held(uint64_t since, uint64_t pages) {
    uint64_t held = pm_commit_clock() - since;
    add(&cost.holds, 1);
    add(&cost.held, held);
    add(&cost.pages, pages);
    if (held > get(&cost.longest))
        atomic_store_explicit(&cost.longest, held, memory_order_relaxed);
}

void pm_commit_was_made(uint64_t since) {
    add(&cost.made, 1);
    add(&cost.took, pm_commit_clock() - since);
}

void pm_commit_cost_say(void) {
    uint64_t made = get(&cost.made), holds = get(&cost.holds);
    if (made == 0 || holds == 0)
        return;
    pm_say("stats: commits: %lu of %lu pages in all; microseconds: %lu for one, %lu of them with "
           "the threads held, at most %lu",
           (unsigned long)made, (unsigned long)get(&cost.pages),
           (unsigned long)(get(&cost.took) / made / 1000),
           (unsigned long)(get(&cost.held) / holds / 1000),
           (unsigned long)(get(&cost.longest) / 1000));
}
