// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What lies at an offset from pm_base, and whether it is marked. While marking is at rest, and not
// beside the program.
#ifndef PM_BLOCK_AROUND_H
#define PM_BLOCK_AROUND_H

#include <stdbool.h>
#include <stdint.h>

struct pm_block {
    uint64_t start, size;
    bool alive; // it is marked
};

// `held`: only what is held can die (blocks/kinds.h), so all else is alive. False: there is no
// block, and what is filled in are the 16 bytes around.
bool pm_block_around(uint64_t offset, bool held, struct pm_block *block);

#endif
