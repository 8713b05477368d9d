// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_LEAKS=stack: by which calls each block was allocated. Every request takes the slow path,
// because threads get no cache, and its stack of calls is recorded:
//
//   site of a block's first granule --> a stack in the table of stacks, each of which stands once
//
// 4 bytes for each 16 of the heap, and 8 MiB for 65,535 stacks. When these are all in use, blocks
// of further stacks have the site 0, as those that were there before.
//
// Lock: none. A site belongs to the owner of the block. A stack is claimed by exchange of its hash.
#ifndef PM_STACKS_H
#define PM_STACKS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

#define PM_STACKS 65536u
#define PM_STACK_FRAMES 14u

extern bool pm_stacks_on;

// Reserves the tables, if PMALLOC_LEAKS asks for them. Called when the range is known, and before
// the tables of the heap cover anything.
int pm_stacks_begin(struct pm_error *err);
// From here on stacks are recorded. Before main: libc loads its unwinder at the first use.
void pm_stacks_record(void);

// The cold path of pm_stacks_note().
void pm_stacks_store(void *block);
// Notes who has asked for this block, NULL: nobody has got one.
static inline void *pm_stacks_note(void *block) {
    if (__builtin_expect(pm_stacks_on, 0) && block)
        pm_stacks_store(block);
    return block;
}

uint32_t pm_stacks_site(const void *block);
// The calls of a site, innermost first, up to the first that is NULL; PM_STACK_FRAMES at most.
void *const *pm_stacks_frames(uint32_t site);
// Prints the calls of a site, innermost first, one on a line.
void pm_stacks_say(uint32_t site);

#endif
