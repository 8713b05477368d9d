// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Thread caches of pinned blocks. Each request changes a bit on media, so they are built for few
// flushes of one line in a row, not for the fewest instructions. A class has a queue for each
// stripe of its bits (media/kind_format.h), and requests take from the stripes in turn, from each
// the block that was freed the longest ago. So a line that was flushed a moment ago is not flushed
// again, as long as the cache has blocks enough: it is refilled before it runs empty. Where lines
// are not flushed (eADR, tmpfs), the stripe of what was freed last comes next (PMAlloc 8.9).
//
// Lock: one of pm_pinned_locks, which few threads share. A fork and the end of the program take all
// of them, so a bit and its block's place in the cache change together for them. A thread takes it
// after pm_tcache_lock and before the lock of a bin. Only its own thread puts blocks into a cache;
// any thread may take all of them out.
#ifndef PM_PINNED_CACHE_H
#define PM_PINNED_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/sizeclass.h"
#include "media/kind_format.h"

#define PM_PINNED_LOCKS 64u
#define PM_PINNED_DEPTH 8u // blocks of a stripe, at most

struct pm_pinned_lock {
    struct pm_lock lock;
} __attribute__((aligned(64)));
extern struct pm_pinned_lock pm_pinned_locks[PM_PINNED_LOCKS];

// The blocks of a class: stripe s has at[s][(first[s] + 0 .. n[s] - 1) % PM_PINNED_DEPTH].
struct pm_pinned_class {
    uint8_t count; // of all stripes
    uint8_t turn;  // the stripe to look at first
    uint8_t depth; // of each stripe, when frees fill it; 0: no block was freed yet
    uint8_t first[PM_PINNED_STRIPES], n[PM_PINNED_STRIPES];
    void *at[PM_PINNED_STRIPES][PM_PINNED_DEPTH];
} __attribute__((aligned(512))); // its place is a shift

struct pm_pinned_cache {
    struct pm_lock *lock;
    // For those who look without the lock: how many frees there were, and whether there may be
    // blocks.
    uint32_t uses;
    bool filled;
    struct pm_pinned_class cls[2][PM_CLASSES + 1]; // with pointers, and without
};

// The thread's first pinned block. NULL: there is no memory. pm_tcache_lock is held.
struct pm_pinned_cache *pm_pinned_cache_make(void);
// Takes a block of a pinned kind, allocated on media. NULL, and nothing was done: the cache has
// few, or another thread has the lock. It makes no system call but those of a flush, and may not
// be called in a handler that has interrupted the holder of a lock.
void *pm_pinned_cache_take(struct pm_pinned_cache *c, enum pm_kind kind, unsigned cls);
// Frees the block of the cache's node whose tag is PM_TAG_KIND. False, and nothing was done: it is
// no small pinned block, its stripe is full, or another thread has the lock. As the one above.
bool pm_pinned_cache_put(struct pm_pinned_cache *c, void *p);
// The same two where they have failed. `place`: the number of malloc's arena (kinds.h). The block
// is not allocated on media. NULL: the node has no memory.
void *pm_pinned_cache_refill(struct pm_pinned_cache *c, unsigned place, enum pm_kind kind,
                             unsigned cls);
// The block is a small pinned one. False: it was freed meanwhile, and nothing was done.
bool pm_pinned_cache_free(struct pm_pinned_cache *c, void *p);
// Returns all blocks to their slabs, and says how many those were. Any thread may call it.
uint64_t pm_pinned_cache_return(struct pm_pinned_cache *c);
// Forgets all blocks, in a forked child.
void pm_pinned_cache_drop(struct pm_pinned_cache *c);
// A figure: how many blocks of a class it has.
unsigned pm_pinned_cache_held(const struct pm_pinned_cache *c, unsigned cls);

#endif
