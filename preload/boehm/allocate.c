// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks of the collector's by their names in gc.h. They come from the heap as malloc's do; a byte
// in pm_col makes them the collector's (gc/live/collectable.h).
#include <errno.h>
#include <string.h>

#include "blocks/alloc.h"
#include "boehm.h"
#include "live/trace.h"
#include "process/entry.h"
#include "settings.h"

#define FREED_KEPT 32768l // bytes of a thread's frees that are taken off its allocations

// A pointer to the first byte after an object keeps it alive, if pointers into it do.
size_t pm_gc_padded(size_t size) {
    return size + (GC_all_interior_pointers != 0 && size != SIZE_MAX);
}

// ---- one block ----------------------------------------------------------------------------------

// A heap on media knows which blocks have no pointers, so that recovery does not look there.
static void *block(size_t size, size_t align, unsigned kind) {
    const struct pm_col_kind *k = &pm_col_kinds[kind];
    if (!k->descriptor && !k->add_size && pm_heap_on_media()) {
        void *p = pm_malloc_of_kind((struct pm_sort){PM_KIND_POINTER_FREE, 0}, size, align);
        return p && k->clear ? memset(p, 0, size) : p;
    }
    if (!k->clear)
        return align > 16 ? pm_memalign(align, size) : pm_malloc(size);
    if (align > 16) {
        void *p = pm_memalign(align, size);
        return p ? memset(p, 0, size) : NULL;
    }
    if (size > PM_SMALL_MAX)
        return pm_calloc(1, size);
    void *p = pm_malloc(size);
    return p ? memset(p, 0, pm_classes[pm_size_to_class(size)].size) : NULL;
}

// Memory of the fallback arena is never freed by the collector.
static void *owned(void *p, unsigned kind) {
    if (p && pm_granule(p) < PM_GRANULES)
        pm_col_set(p, kind);
    return p;
}

static bool over_limit(size_t size) {
    return pm_gc_settings.max_heap &&
           pm_gc_figures.live + pm_gc_bytes_since() + size > pm_gc_settings.max_heap;
}

// A last collection, and what it finds.
__attribute__((noinline)) static void *none_left(size_t size, size_t align, unsigned kind,
                                                 size_t asked) {
    pm_gc_collect(pm_gc_settings.stop);
    pm_gc_sweep_all();
    void *p = over_limit(size) ? NULL : owned(block(size, align, kind), kind);
    return p ? p : GC_oom_fn(asked);
}

static inline void *get(size_t size, size_t align, unsigned kind, size_t asked) {
    if (__builtin_expect((pm_gc_budget -= (long)size) < 0, 0)) {
        pm_gc_tick();
        if (over_limit(size))
            return none_left(size, align, kind, asked);
    }
    void *p = block(size, align, kind);
    return p ? owned(p, kind) : none_left(size, align, kind, asked);
}

static inline void *alloc(size_t size, unsigned kind) {
    pm_gc_init();
    return get(pm_gc_padded(size ? size : 1), 0, kind, size);
}

void *pm_gc_alloc(size_t size, unsigned kind) { return alloc(size, kind); }

void *pm_gc_alloc_aligned(size_t size, size_t align, unsigned kind) {
    pm_gc_init();
    return get(pm_gc_padded(size ? size : 1), align, kind, size);
}

_Atomic unsigned pm_gc_listing;

// Lists are made while no thread is in here.
static inline bool begin_free(void) {
    bool listing = atomic_load_explicit(&pm_gc_listing, memory_order_relaxed) != 0;
    if (listing)
        pm_gc_lock();
    return listing;
}
static inline void end_free(bool locked) {
    if (locked)
        pm_gc_unlock();
}

void pm_gc_free(void *p) {
    bool locked = begin_free();
    uint8_t byte = p ? pm_col_at(p) : 0;
    if (byte & PM_COL_OWNED) {
        pm_gc_finalizer_forget(p);
        long size = (long)pm_usable_size(p);
        pm_gc_figures.freed_since += (uint64_t)size;
        pm_gc_budget += pm_gc_budget + size > FREED_KEPT ? 0 : size;
        *pm_col_of(pm_heap_offset(p)) = 0;
    }
    pm_free(p);
    end_free(locked);
}

// While it moves, the block is explicit, and so alive.
static void *moved(void *p, size_t old, size_t size, unsigned kind) {
    bool locked = begin_free();
    *pm_col_of(pm_heap_offset(p)) = 0;
    void *q = pm_realloc(p, size);
    end_free(locked);
    if (!q) {
        pm_col_set(p, kind);
        return GC_oom_fn(size);
    }
    size_t room = pm_usable_size(q);
    if (pm_col_kinds[kind].clear && room > old)
        memset((char *)q + old, 0, room - old);
    pm_gc_budget -= room > old ? (long)(room - old) : 0;
    return owned(q, kind);
}

// A typed block becomes one of which nothing is known: its descriptor stands at its old end.
EXPORT void *GC_realloc(void *p, size_t size) {
    if (!p)
        return pm_gc_alloc(size, KIND_NORMAL);
    if (!size) {
        pm_gc_free(p);
        return NULL;
    }
    uint8_t byte = pm_col_at(p);
    unsigned kind = byte & PM_COL_KIND;
    if (!(byte & PM_COL_OWNED))
        return pm_realloc(p, size);
    size_t old = pm_usable_size(p), padded = pm_gc_padded(size);
    if (kind == KIND_TYPED) {
        kind = KIND_NORMAL;
        old -= sizeof(gc_word);
        memset((char *)p + old, 0, sizeof(gc_word));
        pm_col_set(p, kind);
    }
    if (padded <= old && padded * 2 > old) { // what is cut off keeps nothing alive
        if (pm_col_kinds[kind].clear)
            memset((char *)p + size, 0, old - size);
        return p;
    }
    if (pm_gc_budget < 0)
        pm_gc_tick();
    return moved(p, old < size ? old : size, padded, kind);
}

// ---- names --------------------------------------------------------------------------------------

#define ALLOCATE(name, kind)                                                                       \
    EXPORT void *name(size_t size) { return alloc(size, kind); }
ALLOCATE(GC_malloc, KIND_NORMAL)
ALLOCATE(GC_malloc_atomic, KIND_ATOMIC)
ALLOCATE(GC_malloc_uncollectable, KIND_UNCOLLECTABLE)
ALLOCATE(GC_malloc_atomic_uncollectable, KIND_ATOMIC_UNCOLLECTABLE)
// Pointers to all pages of a block count anyway.
ALLOCATE(GC_malloc_ignore_off_page, KIND_NORMAL)
ALLOCATE(GC_malloc_atomic_ignore_off_page, KIND_ATOMIC)
ALLOCATE(GC_malloc_stubborn, KIND_NORMAL)

EXPORT void GC_free(void *p) { pm_gc_free(p); }

EXPORT void *GC_memalign(size_t align, size_t size) {
    return pm_gc_alloc_aligned(size, align, KIND_NORMAL);
}

EXPORT int GC_posix_memalign(void **out, size_t align, size_t size) {
    if (!align || align & (align - 1) || align % sizeof(void *))
        return EINVAL;
    void *p = pm_gc_alloc_aligned(size, align, KIND_NORMAL);
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

EXPORT char *GC_strndup(const char *text, size_t most) {
    size_t len = strnlen(text, most);
    char *copy = pm_gc_alloc(len + 1, KIND_ATOMIC);
    if (copy) {
        memcpy(copy, text, len);
        copy[len] = '\0';
    }
    return copy;
}
EXPORT char *GC_strdup(const char *text) { return text ? GC_strndup(text, SIZE_MAX - 1) : NULL; }

// ---- names that have nothing to do here --------------------------------------------------------

EXPORT void GC_end_stubborn_change(const void *p) { (void)p; }
EXPORT void GC_change_stubborn(const void *p) { (void)p; }
EXPORT void GC_ptr_store_and_dirty(void *p, const void *q) { *(const void **)p = q; }
EXPORT void GC_noop1(gc_word x) { __asm__ volatile("" : : "r"(x)); }
EXPORT void *GC_clear_stack(void *p) { return p; }
EXPORT int GC_expand_hp(size_t bytes) {
    pm_gc_init();
    return !over_limit(bytes);
}
