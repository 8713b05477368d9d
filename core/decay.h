// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How much free space may be kept (PMAlloc, section 2.2; the curve is jemalloc's): pages freed in one interval
// may stay in full at first and not at all after the decay time, falling along smootherstep
// h(x) = 6x^5 - 15x^4 + 10x^3. Extent lock.
#ifndef PM_DECAY_H
#define PM_DECAY_H

#include <stdbool.h>
#include <stdint.h>

void pm_decay_init(uint64_t decay_ms);
// Moves the clock on. True when an interval has passed and *limit holds the pages that may stay free.
bool pm_decay_tick(uint64_t now_ms, uint64_t free_pages, uint64_t *limit);

#endif
