// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What each root of the open heap keeps alive: the blocks that nothing would reach without it. Two
// roots that reach the same blocks keep nothing alone; the blocks are shared.
#ifndef PM_TOOLS_RETAINED_H
#define PM_TOOLS_RETAINED_H

#include "base/sizeclass.h"
#include "media/format.h"
#include "recovery/mark.h"
#include "roots/spec.h"

// All that a heap can have. Were one left out, its blocks would be taken for shared.
enum { RETAINED_ROOTS = PM_ROOT_MAX + PM_ROOT_SLOTS };

// Blocks by size class; index 0: blocks with an extent of their own.
struct retained_blocks {
    uint64_t count[PM_CLASSES + 1], bytes[PM_CLASSES + 1];
    uint64_t all_count, all_bytes;
};

struct retained {
    unsigned count; // of roots below
    struct retained_root {
        char text[PM_SPEC_TEXT_LEN];
        uint64_t length; // of the root itself
        struct retained_blocks blocks;
    } root[RETAINED_ROOTS];
    struct retained_blocks shared; // what more than one root reaches
};

// Marks once for each root. It comes after census_take(), and what the census reads is gone then:
// census_map() too must have been called before.
int retained_find(struct retained *r, pm_progress *progress, struct pm_error *err);

// Adds the blocks of `b` to `to`.
void retained_add(struct retained_blocks *to, const struct retained_blocks *b);

#endif
