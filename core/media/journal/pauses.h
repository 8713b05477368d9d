// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Counts how long threads stood still, by lengths. One caller at a time counts; others may read.
#ifndef PM_PAUSES_H
#define PM_PAUSES_H

#include <stdint.h>

#include "pauses_format.h"

// The bound of this number in nanoseconds, 10 us, 20 us, 50 us, 100 us ... 10 s; UINT64_MAX for the
// last count, of what is longer than that.
uint64_t pm_pause_bound(unsigned number);

void pm_pauses_add(struct pm_pauses *pauses, uint64_t ns);
// How many there were.
uint64_t pm_pauses_count(const struct pm_pauses *pauses);
// How many pages rounds have found.
uint64_t pm_pauses_in_rounds(const struct pm_pauses *pauses);
// How long this share of them, in hundredths, was at most, as far as the bounds tell; in
// nanoseconds. 0: there were none.
uint64_t pm_pauses_at_most(const struct pm_pauses *pauses, unsigned hundredths);

#endif
