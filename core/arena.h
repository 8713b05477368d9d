// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Arenas: one a core, each with a list of slabs that have free blocks for every size class. A thread works
// with the arena that had the fewest threads when it came. A slab belongs to one arena for its life; blocks
// freed anywhere return to it.
//
// Lock: one per bin (arena and class). It covers the bin's lists and every vslab of its slabs. A slab changes bins
// when it morphs, under the locks of both: the one that needs it waits for its own and only tries the other's.
#ifndef PM_ARENA_H
#define PM_ARENA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lock.h"
#include "slab.h"

struct pm_bin {
    struct pm_lock lock;
    uint32_t list;                // slabs with free blocks: slab number + 1
    uint32_t sparse, sparse_last; // those less full than PMALLOC_MORPH, the longest unused first
    uint32_t slabs;               // of this class
    uint32_t empty;               // of these, entirely free; at most one is kept
    uint32_t blocked;             // blocks in them that lie on others of a class before
    uint16_t wait, waited;   // slabs made before the next look for one to morph, after vain ones
    _Atomic uint32_t guests; // blocks of this class in slabs that have become another's
    uint64_t fills, flushes;
} __attribute__((aligned(64)));

struct pm_arena {
    _Atomic uint32_t threads;
    _Atomic uint32_t clock; // moves when a slab becomes sparse
    uint16_t number;
    struct pm_bin bin[PM_CLASSES + 1];
};

extern struct pm_arena *pm_arenas;
extern unsigned pm_arena_count;

bool pm_arenas_init(unsigned cores);
// The least used arena, its thread count raised.
struct pm_arena *pm_arena_join(void);
void pm_arena_leave(struct pm_arena *arena);

// Takes up to `want` blocks of a class, in address order as far as one slab goes; fewer, down to 0, only
// when memory is out.
unsigned pm_arena_fill(struct pm_arena *arena, unsigned cls, void **blocks, unsigned want);
// Returns blocks of one class, of any arenas, to their slabs; entirely free slabs beyond one are given back.
void pm_arena_flush(unsigned cls, void **blocks, unsigned count);
// Makes the tags of a recovered slab true. True when they were not.
bool pm_arena_refresh(uint32_t slab);
// Hands a recovered slab to an arena. Single-threaded.
void pm_arena_adopt(uint32_t slab);

#endif
