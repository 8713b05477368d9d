// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "decay.h"

#include <string.h>

struct pm_lock pm_age_lock = PM_LOCK(PM_RANK_AGE);

#define STEPS ((uint64_t)PM_DECAY_STEPS)
#define FIXED 24 // fractional bits

// The share that may stay of the pages freed STEPS - i intervals ago, with FIXED fractional bits.
// With x = (i + 1) / STEPS, h(x) * STEPS^5 fits in 64 bits. Shifted by FIXED it does not.
static uint32_t weight_of(uint64_t i) {
    __uint128_t x = i + 1, n = STEPS;
    __uint128_t h = x * x * x * (6 * x * x + 10 * n * n - 15 * x * n);
    return (uint32_t)((h << FIXED) / (n * n * n * n * n));
}

static uint32_t weight[STEPS]; // filled by the first pm_decay_init()

void pm_decay_init(struct pm_decay *d, uint64_t decay_ms) {
    *d = (struct pm_decay){.time_ms = decay_ms};
    for (uint64_t i = 0; i < STEPS && !weight[STEPS - 1]; i++)
        weight[i] = weight_of(i);
}

bool pm_decay_tick(struct pm_decay *d, uint64_t now_ms, uint64_t free_pages, uint64_t *limit) {
    if (d->time_ms == 0) {
        *limit = 0;
        return true;
    }
    if (!d->started) {
        d->start_ms = now_ms;
        d->started = true;
    }
    uint64_t now = (now_ms - d->start_ms) * STEPS / d->time_ms, passed = now - d->step;
    if (passed == 0)
        return false;
    d->step = now;
    if (passed > STEPS)
        passed = STEPS;
    memmove(d->backlog, d->backlog + passed, (STEPS - passed) * sizeof *d->backlog);
    memset(d->backlog + STEPS - passed, 0, passed * sizeof *d->backlog);
    d->backlog[STEPS - 1] = free_pages > d->counted ? free_pages - d->counted : 0;
    d->counted = free_pages;
    uint64_t sum = 0;
    for (unsigned i = 0; i < STEPS; i++)
        sum += d->backlog[i] * weight[i];
    *limit = sum >> FIXED;
    if (*limit < d->counted)
        d->counted = *limit; // the caller releases down to *limit now
    return true;
}
