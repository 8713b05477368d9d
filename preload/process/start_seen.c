// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "start_seen.h"

struct pm_start_seen pm_start_seen;

void pm_start_seen_progress(const char *stage, uint64_t done, uint64_t total) {
    atomic_store_explicit(&pm_start_seen.done, done, memory_order_relaxed);
    atomic_store_explicit(&pm_start_seen.total, total, memory_order_relaxed);
    pm_start_seen_stage(*stage == 'm' ? PM_START_MARKS : PM_START_SWEEPS);
}

void pm_start_seen_stage(enum pm_start_stage stage) {
    atomic_store_explicit(&pm_start_seen.stage, stage, memory_order_release);
}
