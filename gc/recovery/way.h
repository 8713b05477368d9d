// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How blocks are reached: from which root, and over which blocks. For messages and tools: a number
// alone tells nobody where a block comes from. Blocks are looked at in the order of their distance
// from the roots, so a way is one of the shortest. It takes 32 bytes for each block that is nearer.
//
// Nothing changes the heap meanwhile. Ways by words of the form `before` are not seen.
#ifndef PM_WAY_H
#define PM_WAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pm_way_start { PM_WAY_ROOT, PM_WAY_SLOT, PM_WAY_PINNED };

struct pm_way {
    enum pm_way_start start;
    uint32_t number; // of the root in the table, or of the slot
    uint64_t at;     // in the root: the place of the word that leads on
    uint32_t steps;  // blocks, the last one too
};
struct pm_way_step {
    uint64_t block, size; // an offset from pm_base
    uint64_t at;          // in the block: the place of the word that leads on
};

// Looks for ways to blocks, by their starts, until all have one. At most `most` blocks are looked
// at. False: there is no memory, or the roots cannot be read. Then, and for a block that was not
// found, there is no way.
bool pm_ways_find(const uint64_t *target, unsigned count, uint32_t most);
// False: there is none.
bool pm_way_of(uint64_t block, struct pm_way *way);
// The steps of the way, in their order. `step` has room for way.steps.
void pm_way_steps(uint64_t block, struct pm_way_step *step);
void pm_ways_drop(void);

// The name of its root, as PMALLOC_ROOTS has it, with the place in it.
void pm_way_root_text(const struct pm_way *way, char *out, size_t len);
// "store+8 -> +16 of 64 bytes -> 3 blocks more -> +96 of 24576 bytes": to that place in the block.
// "" where there is no way.
void pm_way_text(uint64_t block, uint64_t place, char *out, size_t len);
// The same for one block, with a look and its end: a quarter of a second at most.
void pm_way_find_text(uint64_t block, uint64_t place, char *out, size_t len);

#endif
