// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "decay.h"

#include <string.h>

#define STEPS 200 // a decay time of 10 s makes intervals of 50 ms
#define FIXED 24  // fractional bits

static uint32_t
    weight[STEPS]; // weight[i]: share that may stay of pages freed STEPS - i intervals ago
static uint64_t backlog[STEPS]; // pages by the interval they were freed in, oldest first
static uint64_t interval_ms, last_ms, counted;

void pm_decay_init(uint64_t decay_ms) {
    interval_ms = decay_ms / STEPS;
    memset(backlog, 0, sizeof backlog);
    counted = last_ms = 0;
    for (uint64_t i = 0; i < STEPS; i++) {
        // x = (i + 1) / STEPS; the numerator of h(x) over STEPS^5 fits 64 bits, the shift does not
        __uint128_t x = i + 1, n = STEPS;
        __uint128_t h = x * x * x * (6 * x * x + 10 * n * n - 15 * x * n);
        weight[i] = (uint32_t)((h << FIXED) / (n * n * n * n * n));
    }
}

bool pm_decay_tick(uint64_t now_ms, uint64_t free_pages, uint64_t *limit) {
    if (interval_ms == 0) {
        *limit = 0;
        return true;
    }
    if (last_ms == 0)
        last_ms = now_ms;
    uint64_t passed = (now_ms - last_ms) / interval_ms;
    if (passed == 0)
        return false;
    last_ms += passed * interval_ms;
    if (passed > STEPS)
        passed = STEPS;
    memmove(backlog, backlog + passed, (STEPS - passed) * sizeof *backlog);
    memset(backlog + STEPS - passed, 0, passed * sizeof *backlog);
    backlog[STEPS - 1] = free_pages > counted ? free_pages - counted : 0;
    counted = free_pages;
    uint64_t sum = 0;
    for (unsigned i = 0; i < STEPS; i++)
        sum += backlog[i] * weight[i];
    *limit = sum >> FIXED;
    if (*limit < counted)
        counted = *limit; // what the caller purges now is not freed again later
    return true;
}
