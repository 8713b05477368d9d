// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The one door to the allocator: allocation functions that do what libc promises. preload/names
// gives them libc's names. The hot path is inline, in tcache.h. The slow path decides here, once:
// whether the heap has to be opened, whether the thread gets a cache, whether a signal handler has
// interrupted the allocator, how cancellation and errno are kept, and when deferred frees are made.
// All functions are thread-safe. On failure they return NULL and set errno to ENOMEM. Those that
// free keep errno.
#ifndef PM_ENTRY_H
#define PM_ENTRY_H

#include <stddef.h>

#include "base/cancel.h"
#include "blocks/tcache.h"
#include "media/kind_format.h"
#include "media/persist.h"

void *pm_malloc_slow(size_t size);
void pm_free_slow(void *p);
// Makes the frees that signal handlers of this thread had to defer. The thread must have a cache.
void pm_free_deferred(void);
// The same for all threads, which are held outside of the allocator.
void pm_free_deferred_of_all(void);

static inline void *pm_malloc(size_t size) {
    if (PM_LIKELY(size <= PM_SMALL_MAX)) {
        void *p = pm_tcache_pop(pm_tcache, pm_size_to_class(size));
        if (PM_LIKELY(p != NULL))
            return p;
    }
    return pm_malloc_slow(size);
}

static inline void pm_free(void *p) {
    if (PM_UNLIKELY(!pm_tcache_push(pm_tcache, p)))
        pm_free_slow(p);
}

// Called when the process is about to take addresses, memory or system calls from itself: one that
// waits for its heap (phase.h: WAITING) gets it, and this thread what its first request takes.
void pm_settle(void);
// Past the function that watches frees.
void pm_free_now(void *p);
// From here on `taker` is asked about each free of a block of the heap; see
// pmalloc_set_free_callback(). NULL: it is asked no more.
void pm_frees_watch(int (*taker)(void *p));

void *pm_calloc(size_t count, size_t size);
// As glibc: realloc(p, 0) frees p and returns NULL.
void *pm_realloc(void *p, size_t size);
// `align` is a power of two.
void *pm_memalign(size_t align, size_t size);
// A block of a kind other than PM_KIND_CONSERVATIVE, or of a type; not in a signal handler that has
// interrupted the allocator. `align` may be 0. A pinned block is not allocated on media before
// pm_pin() (blocks/pinned.h).
void *pm_malloc_of_kind(struct pm_sort sort, size_t size, size_t align);
void pm_pin_now(void *p);
// A pointer-free block from the thread's cache. NULL: it has none there. The empty asm keeps the
// compiler from making the tag twice.
static inline void *pm_malloc_pointer_free(size_t size) {
    if (PM_UNLIKELY(size > PM_SMALL_MAX))
        return NULL;
    uint64_t tag = PM_TAG_POINTER_FREE + pm_size_to_class(size);
    __asm__("" : "+r"(tag));
    return pm_tcache_pop(pm_tcache, tag);
}

// Whether this thread has a cache of pinned blocks, and a request of it needs no more than the
// short hold: a flush that is an msync() does.
static inline bool pm_has_pinned(const struct pm_tcache *t) {
    return t->pinned && !pm_nested() && !pm_persist_waits();
}
// A small pinned block from the thread's cache, allocated on media. NULL: the slow path has to do
// it.
static inline void *pm_malloc_pinned(enum pm_kind kind, size_t size) {
    struct pm_tcache *t = pm_tcache;
    if (!pm_has_pinned(t) || size > PM_SMALL_MAX)
        return NULL;
    int held = pm_cancel_hold_short();
    void *p = pm_pinned_cache_take(t->pinned, kind, pm_size_to_class(size));
    pm_cancel_release_short(held);
    return p;
}
size_t pm_usable_size(void *p);
// Returns this thread's cached blocks and releases all free space. True when space was released.
bool pm_trim(void);

#endif
