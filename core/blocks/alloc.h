// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pure allocation: blocks from the thread's cache, the arenas and the extents. It knows no process
// and no libc name. The caller has opened the heap, has postponed cancellation, and is not in a
// signal handler that interrupted the holder of a lock. process/entry.h sees to all three.
// Functions that may be called in any handler say so.
#ifndef PM_ALLOC_H
#define PM_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "found.h"
#include "tcache.h"

// Returns a block of malloc's class `cls`, from the thread's cache if it has one. NULL: memory is
// out.
void *pm_alloc_small(unsigned cls);
// Returns the address of a new extent for a block over PM_SMALL_MAX. NULL: memory is out. `align`
// is a power of two. *zero says whether the caller wants zeroes, and becomes whether the extent
// reads as zeroes: it may not, although they are wanted.
void *pm_alloc_large(size_t size, size_t align, bool *zero);

// The cached path of large blocks: from and to the extent cache of the thread's arena. It takes no
// lock and does no system call, so cancellation need not be held off, and any handler may take it.
// NULL, or false and nothing has changed: the slow path has to do it.
PM_CACHED_PATH void *pm_alloc_cached(size_t size) {
    return pm_extent_cache_malloc(pm_tcache->extents, size);
}
PM_CACHED_PATH bool pm_alloc_free_cached(const void *p) {
    return pm_extent_cache_free(pm_tcache->extents, p);
}

// The same for a block, small or large, in a further shard of the thread's node: it is not in the
// range of addresses that the caches know (pm_node_memory()).
static inline bool pm_alloc_free_further(void *p) {
    struct pm_tcache *t = pm_tcache;
    uint64_t granule = pm_granule(p);
    // `granules` is 0 in a thread without a cache, and while another thread asks for its blocks.
    if (pm_nodes.count == 1 || t->granules == 0 || granule >= PM_GRANULES ||
        pm_node_of(p) != t->node)
        return false;
    unsigned tag = __atomic_load_n(&pm_tag[pm_tag_index(granule)], __ATOMIC_RELAXED);
    if (pm_tag_is_cached(tag))
        return pm_tcache_put(t, p, tag);
    return tag == PM_TAG_EXTENT &&
           atomic_load_explicit(&t->extents->granules, memory_order_acquire) &&
           pm_extent_cache_put(t->extents, granule);
}

// How many large blocks came from another node, because the thread's own had no memory; relaxed.
extern _Atomic uint64_t pm_alloc_far;

// Returns a block of a kind other than PM_KIND_CONSERVATIVE, or of a type. `align` is a power of
// two or 0. It may have anything. NULL: memory is out.
void *pm_alloc_of_kind(struct pm_sort sort, size_t size, size_t align);
// Frees the block at `p`, whose tag is `tag`. Reports misuse as PMALLOC_CHECK asks.
void pm_alloc_free(void *p, unsigned tag);
// Frees a small pinned block of another node whose bit on media is clear: a publish has freed it,
// or it was reserved. Nothing is stored to media. False: `p` is none, and nothing was done.
bool pm_alloc_free_unpinned(void *p);
// Grows or shrinks a large block in place. The new length is rounded up to an eighth of a power of
// two (pm_large_pages()), so that an array which grows in small steps rarely needs the extent lock.
// False: nothing has changed and the block has to move. It may be called in any handler.
bool pm_alloc_resize(uint32_t extent, size_t size);

#endif
