// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How far the start of a process is, for tools that look from outside (leaks_door.h leads them
// here). One thread stores; nobody waits for it.
#ifndef PM_START_SEEN_H
#define PM_START_SEEN_H

#include <stdatomic.h>
#include <stdint.h>

enum pm_start_stage {
    PM_START_BEGINS,
    PM_START_MARKS,    // `done` of about `total` bytes
    PM_START_SWEEPS,   // `done` of about `total` pages
    PM_START_OVER,     // main runs, or is called next: the heap is ready
    PM_START_UNHEAPED, // the same, on volatile memory
};

struct pm_start_seen {
    _Atomic uint32_t stage;
    _Atomic uint64_t done, total;
};

#endif
