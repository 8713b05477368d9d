// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What becomes of a word that leads into an object on record: by where the object lies now, and by
// what it is.
#ifndef PM_VERDICT_H
#define PM_VERDICT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "found_words.h"
#include "match.h"
#include "roots/objects_record.h"

enum pm_verdict {
    PM_VERDICT_STAYS,   // it is right as it is, or no pointer
    PM_VERDICT_CHANGES, // to *to
    PM_VERDICT_COPIED,  // to a copy of a string literal that is gone
    PM_VERDICT_WAITS,   // for an object that is not loaded yet: right if that comes to its place
    PM_VERDICT_STALE,   // as UNSURE, in another build, and PMALLOC_REBASE_TRUST has stale: to 0
    PM_VERDICT_UNSURE,  // it cannot be proved where it should lead
};

#define PM_VERDICT_WHY 360u

// Compares what is on record with what is loaded: whether an object is loaded elsewhere, or in
// another build, or lies where another one lay.
bool pm_verdicts_moved(void);
// The same. Returns the ranges of what is not where it was.
unsigned pm_verdicts_begin(const struct pm_range_of_words **ranges);
// The same while the program runs: the ranges of what is loaded elsewhere, without what was in an
// earlier call, and without what has something else in its place.
unsigned pm_verdicts_begin_late(const struct pm_range_of_words **ranges);
// Of an address in one of these ranges. `to`: for CHANGES, its `at`, and for COPIED its text.
// `why`: for UNSURE and STALE, and for COPIED where there can be no copies.
enum pm_verdict pm_verdict_of(uint64_t address, struct pm_matched *to, char why[PM_VERDICT_WHY]);
// The name of an object that hashes by the address of a variable of its own, where that address is
// another one now: no word says so, and what it has hashed is not found. NULL: there is none.
const char *pm_verdicts_seed(void);
// Whether one of these objects is loaded in another build.
bool pm_verdicts_other_build(void);
// Which entries of the record the next one has, too: those that are not loaded.
const bool *pm_verdicts_kept(void);
// How many have no word left that leads there, as pm_verdicts_begin_late() has had them looked for.
unsigned pm_verdicts_left(void);

#endif
