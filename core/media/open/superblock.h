// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The contents of a new superblock file.
#ifndef PM_SUPERBLOCK_H
#define PM_SUPERBLOCK_H

#include "media/format.h"

// What is not zero in a new heap's superblock file: identity and geometry ...
void pm_superblock_new(struct pm_superblock *super);
// ... the words of the state page ...
struct pm_state_words {
    uint64_t state, root_epoch;
};
struct pm_state_words pm_state_new(void);
// ... and the empty slots.
void pm_slots_new(struct pm_slots *slots);

#endif
