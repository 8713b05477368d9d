// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Bins: for one size class of one arena, the slabs that have free blocks. A slab with free blocks
// is in one of three places (enum pm_listed). Only the files of this folder include this header.
//
// Lock: each bin has one. It covers the bin's lists and every vslab of the bin's slabs. All
// functions here expect the caller to hold it, unless their comment says otherwise. A slab changes
// its bin under the locks of both: when it morphs, and when another arena takes it. A thread waits
// for the lock of the bin that needs a slab. The lock of the bin that gives one is only tried
// (PM_RANK_BIN is held already). So two threads that take slabs from each other's bins cannot
// deadlock.
#ifndef PM_BIN_H
#define PM_BIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/nodes.h"
#include "media/persist.h"
#include "slab.h"

// Where blocks for a thread cache came from, when the bin itself had none (reach.h). The first,
// PM_STEP_OWN, is not counted: it is what the others leave of the bin's `fills`.
enum pm_step {
    PM_STEP_OWN,         // the bin had free blocks
    PM_STEP_NODE,        // a slab of the class, from another arena of the node
    PM_STEP_MORPH,       // a slab of another class of the same arena morphed
    PM_STEP_MORPH_OTHER, // the same, of another arena
    PM_STEP_GROW,        // a new slab
    PM_STEP_LEND,        // memory was out: another arena of the node took blocks of this bin
    PM_STEP_FAR,         // the same: a thread of another node took a block of this bin
    PM_STEP_NONE,        // there was nothing
    PM_STEPS
};

struct pm_bin {
    struct pm_lock lock;
    uint32_t list; // slabs with free blocks: slab number + 1
    // The queue of sparse slabs, its first and its last: slab number + 1. The slab at the head was
    // queued the longest ago. Other bins read `list`, `sparse` and `sparse_last` without the lock,
    // relaxed, to choose where to look. They read again under the lock before they act.
    uint32_t sparse, sparse_last;
    uint32_t slabs; // of this class
    // Entirely free slabs: the first (slab number + 1; read without the lock as those above), how
    // many, and the fewest since `looked_ms`.
    uint32_t vacant;
    uint32_t empty, idle;
    uint64_t looked_ms;
    // fills + returns at the last look, and how many looks in a row found them unchanged.
    uint64_t uses;
    uint32_t unused;
    uint32_t blocked; // blocks of this class that are blocked by old blocks
    // After looks for a slab to morph that found only slabs not worth it, `skip` slabs are made
    // before the next look. `skipped` of them have been made.
    uint16_t skip, skipped;
    uint8_t want; // slabs of this class in the next group (ahead.h); read without the lock
    // Blocks of this class that are old blocks in slabs of other bins of this arena. Changed under
    // the locks of those bins, so it is atomic; relaxed, because it is a figure alone.
    _Atomic uint32_t lodged_elsewhere;
    uint64_t fills, returns;
    uint64_t steps[PM_STEPS]; // of `fills`, those that went on to this step, and no further
    // Slabs of this bin with blocks that threads of other nodes have freed (returns.h): the first,
    // slab number + 1. The only word here that these threads write. And how many blocks came so.
    _Atomic uint32_t remote;
    uint64_t remote_returns;
} __attribute__((aligned(64)));

struct pm_arena {
    _Atomic uint32_t threads; // 0: nobody uses the arena, and others may take all of its slabs
    _Atomic uint32_t clock;   // raised when a slab is put into a queue of sparse slabs
    uint16_t number;
    uint16_t node;
    uint16_t near;  // how many of `others` are of the same node; these come first
    uint16_t group; // the number of the first arena of the kind (kinds.h)
    // All other arenas of the group, in the order in which this one asks them: their numbers less
    // `group`. So the arenas at one place share a list.
    uint16_t *others;
    bool made; // release: who sees it finds the rest; before that, all is zero and no memory
    struct pm_persist_count persisted; // by its threads
    struct pm_bin bin[PM_CLASSES + 1];
};

extern struct pm_arena *pm_arenas;
extern unsigned pm_arena_count;
extern uint16_t pm_arena_first_of[PM_NODES_MAX + 1]; // arena by node; one more, for the end

// The numbers of a node's arenas, up to before `end`, but not of that of recovered slabs.
struct pm_arena_numbers {
    unsigned first, end;
};
static inline struct pm_arena_numbers pm_arenas_of_node(unsigned node) {
    return (struct pm_arena_numbers){pm_arena_first_of[node], pm_arena_first_of[node + 1]};
}

// Covers the lists of live and spare thread caches, and the making of arenas.
extern struct pm_lock pm_tcache_lock;

static inline bool pm_arena_is_made(const struct pm_arena *arena) {
    return __atomic_load_n(&arena->made, __ATOMIC_ACQUIRE);
}

static inline void pm_bin_touch(struct pm_arena *arena, struct pm_vslab *v) {
    v->used = atomic_load_explicit(&arena->clock, memory_order_relaxed);
}

// Changes the count of old blocks of a class that are in other bins of the arena; no lock needed.
static inline void pm_bin_lodge(struct pm_arena *arena, unsigned cls, uint32_t more) {
    atomic_fetch_add_explicit(&arena->bin[cls].lodged_elsewhere, more, memory_order_relaxed);
}

// Returns where a slab belongs by what is free in it.
enum pm_listed pm_bin_place(const struct pm_vslab *v);
// Puts a slab that is nowhere at the head of a list; not into the queue.
void pm_bin_insert(struct pm_bin *bin, uint32_t slab, enum pm_listed place);
void pm_bin_remove(struct pm_bin *bin, uint32_t slab);
// Takes a slab from where it is, if it is anywhere, and puts it elsewhere.
void pm_bin_move(struct pm_arena *arena, struct pm_bin *bin, uint32_t slab, enum pm_listed place);
// Moves a slab that stands in a list to the bin of its class in another arena, to take blocks from
// it. Both bins are locked.
void pm_bin_transfer(struct pm_arena *from, struct pm_arena *to, uint32_t slab);

// Adds an entirely free slab that is in no bin, or takes one out of its bin.
void pm_bin_add_empty(struct pm_bin *bin, uint32_t slab);
void pm_bin_take_empty(struct pm_bin *bin, uint32_t slab);
void pm_bin_one_empty_less(struct pm_bin *bin);
// Destroys the slabs that stayed empty all through an interval; see "empty slabs" in bin.c.
void pm_bin_age(struct pm_bin *bin);
// Looks at the next bin of all arenas for entirely free slabs to destroy. Any locks of bins may be
// held.
void pm_arenas_age(void);
// Destroys every entirely free slab, of all arenas. Returns how many those were. No bin's lock is
// held.
uint64_t pm_arenas_drop_empty(void);

#endif
