// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Features that a heap gets after it was made.
#ifndef PM_FEATURE_H
#define PM_FEATURE_H

#include <stdbool.h>
#include <stdint.h>

#include "format.h"

// Sets bits of `incompat` in the open heap, durably, and then the checksum. The caller has the
// extent lock of shard 0. Both stores again where a cut has come between them.
void pm_feature_set(uint64_t bits);
// The same, if the heap is on media and lacks one of them. Takes that lock.
void pm_feature_need(uint64_t bits);
// Flushes what a killed process may have left in the caches, so that nobody builds on a bit that is
// not durable. The caller drains.
void pm_feature_flush_inherited(void);
// Whether the checksum is right, or was so before the last bit was set.
bool pm_superblock_is_whole(const struct pm_superblock *super);

#endif
