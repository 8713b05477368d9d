// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// After the marking: a block without a mark is dead, and is freed piece by piece while the program
// runs.
#ifndef PM_SWEEP_H
#define PM_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

struct pm_sweep_sum {
    uint64_t composite, atomic; // bytes of living collectable blocks that have pointers, or none
    uint64_t dead_blocks, dead;
};

// Reserves memory. The world stands still, here and in the next.
bool pm_sweep_begin(void);
// Blocks without a mark become dead, if `kill`. Else it is as if nothing had been marked.
struct pm_sweep_sum pm_sweep_list(bool kill);
// The world runs; one thread at a time. Frees dead blocks, at least `bytes` of them; UINT64_MAX:
// all. The program may be asked first (collectable.h). `release` is called for each; its byte is 0
// then. False: there are no more.
typedef void pm_sweep_fn(void *block, unsigned kind);
bool pm_sweep(uint64_t bytes, pm_sweep_fn *release);

#endif
