// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "entry.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cancel.h"
#include "base/fallback.h"
#include "blocks/age.h"
#include "blocks/alloc.h"
#include "blocks/pinned.h"
#include "blocks/room.h"
#include "blocks/take_back.h"
#include "bus.h"
#include "media/backing/marks.h"
#include "media/persist.h"
#include "pages/extent.h"
#include "pages/frontier.h"
#include "stacks.h"
#include "start.h"

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

static int (*_Atomic free_taker)(void *p);

// ---- routes -------------------------------------------------------------------------------------

// Where a request of this thread goes.
static enum pm_route route(void) {
    return pm_tcache != &pm_no_tcache ? PM_ROUTE_CACHE : pm_thread_enter();
}

// For a signal handler: its free may need a lock that the interrupted code holds, so it is noted
// for later. If there is no more room for notes, or the thread has no cache, the block is lost
// until the next recovery.
static void defer_free(void *p) {
    struct pm_tcache *t = pm_tcache;
    if (t != &pm_no_tcache) {
        // The number first: a handler that interrupts this one may note a block, too.
        uint32_t n = __atomic_fetch_add(&t->deferred_count, 1, __ATOMIC_RELAXED);
        if (n < PM_DEFERRED_MAX)
            t->deferred[n] = p;
        else
            __atomic_fetch_sub(&t->deferred_count, 1, __ATOMIC_RELAXED);
    }
    pm_extent_cache_look_soon(t->extents); // which is a slow request
}

static void free_now(void *p) {
    unsigned tag = pm_find_tag(p);
    if (tag == PM_TAG_NONE && !pm_nested()) // a mistake: to tell which one takes the tables
        pm_process_start();
    if (pm_tag_is_cached(tag) && pm_tcache == &pm_no_tcache)
        pm_thread_enter();
    pm_alloc_free(p, tag);
}

// Takes one note; NULL: there is none. A handler must not take the same one: it finds a lock held
// meanwhile, and so at most adds notes.
static void *take_deferred(struct pm_tcache *t) {
    void *p = NULL;
    pm_locks_held++;
    atomic_signal_fence(memory_order_seq_cst);
    uint32_t n = __atomic_load_n(&t->deferred_count, __ATOMIC_RELAXED);
    do
        p = n ? t->deferred[n - 1] : NULL;
    while (n && !__atomic_compare_exchange_n(&t->deferred_count, &n, n - 1, false, __ATOMIC_RELAXED,
                                             __ATOMIC_RELAXED));
    atomic_signal_fence(memory_order_seq_cst);
    pm_locks_held--;
    return p;
}

void pm_free_deferred(void) {
    void *p;
    while ((p = take_deferred(pm_tcache)) != NULL)
        free_now(p);
}

void pm_free_deferred_of_all(void) {
    void *p;
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        while ((p = take_deferred(t)) != NULL)
            free_now(p);
}

// ---- small --------------------------------------------------------------------------------------

static void *small_fallback(unsigned cls) {
    return pm_fallback_alloc(pm_classes[cls].size, pm_classes[cls].size & -pm_classes[cls].size);
}

__attribute__((noinline)) static void *small_slow(unsigned cls) {
    if (pm_nested())
        return small_fallback(cls);
    struct pm_cancel held = pm_cancel_hold();
    void *p;
    if (route() == PM_ROUTE_FALLBACK) {
        p = small_fallback(cls);
    } else {
        if (pm_tcache->deferred_count)
            pm_free_deferred();
        p = pm_alloc_small(cls);
    }
    pm_cancel_release(held);
    return pm_stacks_note(p);
}

static void *small(unsigned cls) {
    void *p = pm_tcache_pop(pm_tcache, cls);
    if (PM_UNLIKELY(p == NULL))
        p = small_slow(cls);
    return p ? p : no_memory();
}

// ---- large --------------------------------------------------------------------------------------

// If `zero` is not NULL, zeroes are wanted, and *zero becomes whether the block reads as zeroes.
__attribute__((noinline)) static void *large_slow(size_t size, size_t align, bool *zero) {
    struct pm_cancel held = pm_cancel_hold();
    bool zeroes = zero != NULL;
    if (!pm_nested())
        pm_process_start_for(size);
    void *p = pm_nested() || route() == PM_ROUTE_FALLBACK ? pm_fallback_alloc(size, align)
                                                          : pm_alloc_large(size, align, &zeroes);
    if (zero)
        *zero = zeroes;
    if (PM_UNLIKELY(size > PM_HUGE_PAGES << PM_PAGE_SHIFT && p && !pm_bus_watched))
        pm_bus_watch();
    pm_cancel_release(held);
    return p ? pm_stacks_note(p) : no_memory();
}

static void *large(size_t size, size_t align, bool *zero) {
    void *cached = align <= PM_PAGE_SIZE ? pm_alloc_cached(size) : NULL;
    if (PM_LIKELY(cached != NULL)) {
        if (zero)
            *zero = false;
        return cached;
    }
    return large_slow(size, align, zero);
}

// ---- the functions ------------------------------------------------------------------------------

void *pm_malloc_slow(size_t size) {
    if (size <= PM_SMALL_MAX)
        return small(pm_size_to_class(size));
    void *p = pm_alloc_cached(size);
    return PM_LIKELY(p != NULL) ? p : large_slow(size, PM_PAGE_SIZE, NULL);
}

// A handler that has interrupted the allocator cannot call the program's function.
static bool taken_over(void *p) {
    int (*taker)(void *) = atomic_load_explicit(&free_taker, memory_order_acquire);
    return taker && pm_in_range(p) && !pm_nested() && taker(p) != 0;
}

// To tell what is wrong takes the allocator's tables.
static void misuse(const char *call, const void *p) {
    if (!pm_nested())
        pm_process_start();
    pm_misuse(call, p);
}

__attribute__((noinline)) static void free_uncached(void *p, bool ask) {
    if (!p || (ask && taken_over(p)) || pm_alloc_free_further(p))
        return;
    if (pm_fallback_owns(p)) {
        if (pm_fallback_is_block(p))
            pm_fallback_free(p);
        else
            misuse("free", p);
        return;
    }
    if (pm_nested()) {
        defer_free(p);
        return;
    }
    int saved = errno;
    struct pm_cancel held = pm_cancel_hold();
    if (pm_tcache->deferred_count)
        pm_free_deferred();
    free_now(p);
    pm_cancel_release(held);
    errno = saved;
}

// As pm_tcache_push(), of a pinned block.
static bool free_pinned(void *p) {
    struct pm_tcache *t = pm_tcache;
    uint64_t granule = pm_granule_from(t->base, p);
    if (granule >= t->granules || t->tag[pm_tag_index(granule)] != PM_TAG_KIND || !pm_has_pinned(t))
        return false;
    int held = pm_cancel_hold_short();
    bool put = pm_pinned_cache_put(t->pinned, p);
    pm_cancel_release_short(held);
    return put;
}

// Apart, so that a free of a large block saves no registers for it.
__attribute__((noinline)) static void free_not_large(void *p) {
    if (!(pm_tcache->pinned && free_pinned(p)))
        free_uncached(p, true);
}

void pm_free_slow(void *p) {
    if (!pm_alloc_free_cached(p))
        free_not_large(p);
}

void pm_free_now(void *p) {
    if (!pm_tcache_push(pm_tcache, p) && !pm_alloc_free_cached(p))
        free_uncached(p, false);
}

void pm_frees_watch(int (*taker)(void *p)) {
    atomic_store_explicit(&free_taker, taker, memory_order_release);
    if (taker && !atomic_load_explicit(&pm_frees_watched, memory_order_relaxed))
        pm_tcaches_watch();
}

void pm_settle(void) {
    if (pm_phase() != PM_WAITING || pm_nested())
        return;
    pm_process_start();
    pm_free(pm_malloc(1));
}

void *pm_calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return no_memory();
    if (bytes <= PM_SMALL_MAX) {
        void *p = small(pm_size_to_class(bytes));
        return p ? memset(p, 0, bytes) : NULL;
    }
    bool zero;
    void *p = large(bytes, PM_PAGE_SIZE, &zero);
    if (p && !zero)
        pm_zero(p, bytes);
    return p;
}

void *pm_memalign(size_t align, size_t size) {
    if (align <= 16)
        return pm_malloc(size);
    unsigned cls = pm_aligned_class(size, align);
    return cls ? small(cls) : large(size, align, NULL);
}

void *pm_malloc_of_kind(struct pm_sort sort, size_t size, size_t align) {
    if (pm_nested())
        return no_memory();
    struct pm_cancel held = pm_cancel_hold();
    bool fallback = route() == PM_ROUTE_FALLBACK;
    if (!fallback && pm_tcache->deferred_count)
        pm_free_deferred();
    void *p = fallback ? NULL : pm_alloc_of_kind(sort, size, align);
    pm_cancel_release(held);
    return fallback ? pm_memalign(align, size) : p ? pm_stacks_note(p) : no_memory();
}

void pm_pin_now(void *p) {
    struct pm_cancel held = pm_cancel_hold();
    if (pm_in_range(p)) // else it came from the fallback
        pm_pin(p);
    pm_cancel_release(held);
}

size_t pm_usable_size(void *p) {
    if (!p)
        return 0;
    struct pm_found found = pm_find(p);
    if (found.what == PM_NOTHING)
        misuse("malloc_usable_size", p);
    return found.size;
}

// For a large block that grows in steps. NULL: it has no room, or needs none.
static void *with_room(size_t old, size_t size) {
    if (pm_nested())
        return NULL;
    struct pm_cancel held = pm_cancel_hold();
    void *p = route() == PM_ROUTE_FALLBACK ? NULL : pm_room_alloc(old, size);
    pm_cancel_release(held);
    return p ? pm_stacks_note(p) : NULL;
}

#define REMAP_LEAST ((size_t)2 << 20)
#define REMAP_DONTUNMAP 4

static bool remap(char *to, char *from, size_t len) {
    return len >= REMAP_LEAST &&
           mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED | REMAP_DONTUNMAP, to) == to;
}

// Volatile memory moves by its pages: nothing is copied, and none of it is there twice. The old
// pages read as zeroes then. The kernel moves what is one mapping to it; an earlier move, of the
// block before, may have made two of it.
static void remap_or_copy(char *to, char *from, size_t len) {
    if (remap(to, from, len & ~(PM_PAGE_SIZE - 1))) {
        size_t whole = len & ~(PM_PAGE_SIZE - 1);
        memcpy(to + whole, from + whole, len - whole);
    } else if (len < 2 * REMAP_LEAST) {
        memcpy(to, from, len);
    } else {
        size_t half = len / 2 & ~(REMAP_LEAST - 1);
        remap_or_copy(to, from, half);
        remap_or_copy(to + half, from + half, len - half);
    }
}

static void carry(void *to, void *from, size_t len) {
    int saved = errno;
    bool pages = len >= REMAP_LEAST && pm_heap_state() == PM_HEAP_VOLATILE && pm_in_range(from) &&
                 pm_in_range(to) && !pm_marks_any() &&
                 ((uintptr_t)from | (uintptr_t)to) % PM_PAGE_SIZE == 0;
    if (pages)
        remap_or_copy(to, from, len);
    else
        memcpy(to, from, len);
    errno = saved;
}

static void *move(void *p, const struct pm_found *old, size_t size) {
    struct pm_sort sort = {(uint8_t)old->kind, old->type};
    void *fresh = old->kind ? pm_malloc_of_kind(sort, size, 0) : with_room(old->size, size);
    if (!fresh && !old->kind)
        fresh = pm_malloc(size);
    if (!fresh)
        return NULL;
    carry(fresh, p, old->size < size ? old->size : size);
    if (pm_kind_is_pinned(old->kind))
        pm_pin_now(fresh);
    pm_free(p);
    return fresh;
}

// A block stays where it is while at least half of it is used.
static bool is_half_used(size_t have, size_t size) { return size <= have && size * 2 > have; }

__attribute__((noinline)) static void *realloc_found(void *p, size_t size) {
    struct pm_found found = pm_find(p);
    if (found.what == PM_NOTHING) {
        misuse("realloc", p);
        return no_memory();
    }
    bool stays = found.what == PM_LARGE && !found.kind ? pm_alloc_resize(found.extent, size)
                                                       : is_half_used(found.size, size);
    return stays ? p : move(p, &found, size);
}

void *pm_realloc(void *p, size_t size) {
    if (!p)
        return pm_malloc(size);
    if (size == 0) {
        pm_free(p);
        return NULL;
    }
    return is_half_used(pm_find_small(p), size) ? p : realloc_found(p, size);
}

bool pm_trim(void) {
    if (!pm_phase_serves() || pm_nested())
        return false;
    struct pm_cancel held = pm_cancel_hold();
    pm_take_back();
    bool punched = pm_age_punch(), gave = pm_extent_purge(true);
    pm_cancel_release(held);
    return gave || punched;
}
