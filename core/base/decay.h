// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How many free pages may keep their space (PMAlloc, section 2.2; the curve is jemalloc's). At
// first all pages freed in one interval may; after the decay time none of them. In between the
// share falls along smootherstep, h(x) = 6x^5 - 15x^4 + 10x^3.
//
// Lock: the caller's. Each shard of the heap has a curve of its own, under its extent lock.
#ifndef PM_DECAY_H
#define PM_DECAY_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

// Held by our own thread while it works, and by whoever holds all threads. A fork and the end of
// the program take it first.
extern struct pm_lock pm_age_lock;

#define PM_DECAY_STEPS 200 // a decay time of 10 s makes intervals of 50 ms

struct pm_decay {
    uint64_t backlog[PM_DECAY_STEPS]; // pages by the interval they were freed in, oldest first
    uint64_t time_ms, start_ms;
    uint64_t counted; // free pages after the last tick
    // Whole intervals since the start. Computed from the start time, because an interval need not
    // be a whole number of milliseconds.
    uint64_t step;
    bool started;
};

// Starts anew with a decay time; 0: no free page keeps its space.
void pm_decay_init(struct pm_decay *d, uint64_t decay_ms);
// Notes the time and how many free pages have space now. True: an interval has passed, and *limit
// is how many of these pages may keep it.
bool pm_decay_tick(struct pm_decay *d, uint64_t now_ms, uint64_t free_pages, uint64_t *limit);

#endif
