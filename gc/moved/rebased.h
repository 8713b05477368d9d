// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How often a heap has followed its program to another build or place, on record for people.
#ifndef PM_REBASED_H
#define PM_REBASED_H

#include <stdbool.h>
#include <stdint.h>

#include "media/format.h"
#include "media/rebased_format.h"

// So many words are changed: counts it in `state`, which is the heap's, or the copy of it that the
// commit has which changes them. It is a hint, so nothing is flushed for it.
void pm_rebased_count(struct pm_state *state, uint64_t words, bool other_build);
// False: there was none, or the record is damaged.
bool pm_rebased_read(const struct pm_state *state, struct pm_rebased *out);

#endif
