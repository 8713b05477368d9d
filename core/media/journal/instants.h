// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// At which instants commits were taken, on record when the journal that said so is gone.
#ifndef PM_INSTANTS_H
#define PM_INSTANTS_H

#include <stdbool.h>
#include <stdint.h>

#include "instants_format.h"
#include "media/format.h"

// The record, and where it lies in the superblock's file. `time`: of the last commit they count.
struct pm_instants_state pm_instants_record(const struct pm_instants *instants, uint64_t time);
uint64_t pm_instants_at(void);
// The process has made its last commit, and stores to its superblock itself again.
void pm_instants_keep(struct pm_state *state, const struct pm_instants *instants, uint64_t time);
// What is on record. False: nothing.
bool pm_instants_read(const struct pm_state *state, struct pm_instants *instants, uint64_t *time);

#endif
