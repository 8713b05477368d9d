// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "alloc.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "boot.h"
#include "extent.h"
#include "guard.h"
#include "options.h"
#include "runtime.h"

static void *no_memory(void) {
    errno = ENOMEM;
    return NULL;
}

// ---- bad pointers ------------------------------------------------------------------------------------

static _Atomic uint64_t foreign_pointers;

// A pointer that no heap of ours ever gave out: somebody else's memory, left alone.
static void foreign(const char *call, const void *p) {
    if (pm_options.check.number == PM_CHECK_STRICT)
        pm_abort("%s(%p): the pointer is outside the heap", call, p);
    if (atomic_fetch_add_explicit(&foreign_pointers, 1, memory_order_relaxed) != 0)
        return;
    pm_say("%s(%p): the pointer is outside the heap and is left alone; reported once", call, p);
}

static const char *what_is_wrong(const void *p) {
    if ((uintptr_t)p % 16)
        return "misaligned pointer";
    if (pm_heap_offset(p) >= pm_heap.frontier)
        return "pointer into the heap's unused range";
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of(p)];
    if (v->size_class) {
        uint32_t offset = (uint32_t)(pm_heap_offset(p) & (PM_SLAB_SIZE - 1));
        bool starts = offset % pm_classes[v->size_class].size == 0;
        starts |= v->old_class && offset % pm_classes[v->old_class].size == 0;
        return starts ? "block is free already (double free?)"
                      : "pointer into the middle of a block";
    }
    uint32_t extent = pm_page_extent[pm_heap_offset(p) >> PM_PAGE_SHIFT];
    bool starts = extent && pm_extents[extent].page << PM_PAGE_SHIFT == pm_heap_offset(p);
    return starts || !extent ? "block is free already, or pointer into its middle"
                             : "pointer into the middle of a block";
}

static void misuse(const char *call, const void *p) {
    if (!pm_in_range(p)) {
        foreign(call, p);
        return;
    }
    if (pm_options.check.number == PM_CHECK_REPORT)
        pm_say("%s(%p): %s; request ignored", call, p, what_is_wrong(p));
    else
        pm_abort("%s(%p): %s", call, p, what_is_wrong(p));
}

// The tag at `p`, after giving a recovered slab its tags; PM_TAG_NONE: no allocated block starts here.
static unsigned tag_at(const void *p) {
    uint64_t granule = pm_granule(p);
    if (granule >= PM_GRANULES || !pm_tag)
        return PM_TAG_NONE;
    unsigned tag = __atomic_load_n(&pm_tag[granule], __ATOMIC_RELAXED);
    if (tag == PM_TAG_NONE) {
        // Read again whoever did it: another thread may have been faster. The bin's lock orders it before us.
        if (pm_nested())
            return PM_TAG_NONE;
        struct pm_guard guard = pm_guard_enter();
        pm_arena_refresh(pm_slab_of(p));
        pm_guard_leave(guard);
        tag = __atomic_load_n(&pm_tag[granule], __ATOMIC_RELAXED);
    }
    return tag;
}

// ---- ways --------------------------------------------------------------------------------------------

// Where a request of this thread goes.
static enum pm_way way(void) {
    return pm_tcache != &pm_no_tcache ? PM_WAY_CACHE : pm_thread_enter();
}

// A signal handler frees what may need a lock that the interrupted thread holds. Where there is no more room, or the
// thread has no cache, the block is lost until the next recovery.
static void free_later(void *p) {
    struct pm_tcache *t = pm_tcache;
    if (t != &pm_no_tcache && t->later_count < PM_LATER_MAX)
        t->later[t->later_count++] = p;
}

static void free_now(void *p);

void pm_free_left_over(void) {
    struct pm_tcache *t = pm_tcache;
    while (t->later_count)
        free_now(t->later[--t->later_count]);
}

// ---- small -------------------------------------------------------------------------------------------

static void *small_direct(struct pm_arena *arena, unsigned cls) {
    void *p = NULL;
    if (pm_arena_fill(arena, cls, &p, 1) == 0)
        return NULL;
    pm_tag[pm_granule(p)] = (uint8_t)cls;
    return p;
}

static void *small_guarded(unsigned cls) {
    switch (way()) {
    case PM_WAY_BOOT:
        return pm_boot_alloc(pm_classes[cls].size, pm_classes[cls].size & -pm_classes[cls].size);
    case PM_WAY_DIRECT:
        return small_direct(&pm_arenas[0], cls);
    case PM_WAY_CACHE:
        break;
    }
    struct pm_tcache *t = pm_tcache;
    if (t->later_count)
        pm_free_left_over();
    if (!pm_tcache_free_to_use(t, cls))
        return small_direct(t->arena, cls);
    return t->stack[cls].n || pm_tcache_refill(t, cls) ? pm_tcache_pop(t, cls) : NULL;
}

__attribute__((noinline)) static void *small_slow(unsigned cls) {
    if (pm_nested())
        return pm_boot_alloc(pm_classes[cls].size, pm_classes[cls].size & -pm_classes[cls].size);
    struct pm_guard guard = pm_guard_enter();
    void *p = small_guarded(cls);
    pm_guard_leave(guard);
    return p;
}

static void *small(unsigned cls) {
    void *p = pm_tcache_pop(pm_tcache, cls);
    if (PM_UNLIKELY(p == NULL))
        p = small_slow(cls);
    return p ? p : no_memory();
}

// ---- large -------------------------------------------------------------------------------------------

// Of a huge extent, which need not have its pages yet: gives back those behind `size`, and makes sure of the
// one that `size` lies in. False: a store to that one may fail.
static bool trim_slack(const struct pm_extent *e, size_t size, uint64_t end) {
    uint64_t start = e->page << PM_PAGE_SHIFT;
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    bool good =
        end == pm_extent_bytes(e) || pm_heap_uncommit(start + end, pm_extent_bytes(e) - end);
    good = good && (size == end || pm_heap_commit(start + end - PM_PAGE_SIZE, PM_PAGE_SIZE));
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return good;
}

// Clears what lies in a used extent behind `size`: the program will not, and the collector would take old
// pointers there for live ones.
static void clear_slack(uint32_t index, size_t size) {
    const struct pm_extent *e = &pm_extents[index];
    uint64_t end = pm_extent_bytes(e);
    if (!pm_heap.persistent)
        return;
    if (!e->backed) {
        end = (size + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
        if (!trim_slack(e, size, end))
            return;
    }
    memset((char *)pm_extent_address(e) + size, 0, end - size);
}

static uint64_t whole_pages(size_t size) { return (size + PM_PAGE_SIZE - 1) >> PM_PAGE_SHIFT; }

// An extent for a large or huge block. *zero says whether it reads as zeroes.
static void *take_extent(size_t size, size_t align, bool *zero) {
    uint64_t pages = pm_large_pages(size), align_pages = align >> PM_PAGE_SHIFT;
    if (align_pages == 0)
        align_pages = 1;
    if (pages >= PM_HUGE_PAGES) {
        // An eighth of a huge block would be worth having back, and clearing it costs more than it saves.
        pages = whole_pages(size);
        if (align_pages < PM_HUGE_PAGES)
            align_pages = PM_HUGE_PAGES; // so that the kernel can use 2 MiB pages
    }
    uint32_t index = pages ? pm_extent_allocate(pages, align_pages) : 0;
    if (!index)
        return NULL;
    *zero = pm_extents[index].zero;
    if (!pm_extents[index].zero) // after it stands in the log: nothing reaches it before we return
        clear_slack(index, size);
    return pm_extent_address(&pm_extents[index]);
}

static void *large_guarded(size_t size, size_t align, bool *zero) {
    enum pm_way chosen = pm_nested() ? PM_WAY_BOOT : way();
    if (chosen == PM_WAY_BOOT)
        return pm_boot_alloc(size, align);
    return take_extent(size, align, zero);
}

// *zero, where given, says whether the block reads as zeroes.
static void *large(size_t size, size_t align, bool *zero) {
    struct pm_guard guard = pm_guard_enter();
    bool zeroes = true;
    void *p = large_guarded(size, align, &zeroes);
    if (zero)
        *zero = zeroes;
    pm_guard_leave(guard);
    return p ? p : no_memory();
}

// ---- the functions -----------------------------------------------------------------------------------

void *pm_malloc_slow(size_t size) {
    return size <= PM_SMALL_MAX ? small(pm_size_to_class(size)) : large(size, PM_PAGE_SIZE, NULL);
}

static void free_small(void *p, unsigned tag) {
    if (pm_tcache != &pm_no_tcache || pm_thread_enter() == PM_WAY_CACHE) {
        struct pm_tcache *t = pm_tcache;
        if (t->stack[tag].n == t->stack[tag].cap)
            pm_tcache_trim(t, tag);
        if (pm_tcache_push(t, p)) // not so in a handler that interrupted a request of this class
            return;
    }
    pm_tag[pm_granule(p)] = PM_TAG_NONE;
    pm_arena_flush(tag, &p, 1);
}

static void free_now(void *p) {
    unsigned tag = tag_at(p);
    if (tag == PM_TAG_EXTENT) {
        if (!pm_extent_free_block(p))
            misuse("free", p);
    } else if (tag == PM_TAG_NONE) {
        misuse("free", p);
    } else {
        free_small(p, tag);
    }
}

__attribute__((noinline)) void pm_free_slow(void *p) {
    if (!p)
        return;
    if (pm_boot_owns(p)) {
        pm_boot_free(p);
        return;
    }
    if (pm_nested()) {
        free_later(p);
        return;
    }
    int saved = errno;
    struct pm_guard guard = pm_guard_enter();
    if (pm_tcache->later_count)
        pm_free_left_over();
    free_now(p);
    pm_guard_leave(guard);
    errno = saved;
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
    return p && !zero ? memset(p, 0, bytes) : p;
}

void *pm_memalign(size_t align, size_t size) {
    if (align <= 16)
        return pm_malloc(size);
    unsigned cls = pm_aligned_class(size, align);
    return cls ? small(cls) : large(size, align, NULL);
}

// The extent of the block at `p`, which its owner may ask without the lock: nobody else changes it.
static uint32_t extent_of(void *p) {
    if (pm_nested())
        return pm_page_extent[pm_heap_offset(p) >> PM_PAGE_SHIFT];
    struct pm_guard guard = pm_guard_enter();
    uint32_t index = pm_extent_find(p);
    pm_guard_leave(guard);
    return index;
}

size_t pm_usable_size(void *p) {
    if (!p)
        return 0;
    if (pm_boot_owns(p))
        return pm_boot_size(p);
    unsigned tag = tag_at(p);
    if (tag >= 1 && tag <= PM_CLASSES)
        return pm_classes[tag].size;
    uint32_t index = tag == PM_TAG_EXTENT ? extent_of(p) : 0;
    if (index)
        return pm_extent_bytes(&pm_extents[index]);
    misuse("malloc_usable_size", p);
    return 0;
}

static void *move(void *p, size_t old, size_t size) {
    void *fresh = pm_malloc(size);
    if (!fresh)
        return NULL;
    memcpy(fresh, p, old < size ? old : size);
    pm_free(p);
    return fresh;
}

// Grown and shrunk in eighths, so that an array growing by little does not come to the extents for every page.
static bool resize(uint32_t index, size_t size) {
    uint64_t pages = pm_large_pages(size), have = pm_extents[index].pages;
    if (size <= PM_SMALL_MAX)
        return false;
    if (have >= whole_pages(size) && have <= pages)
        return true;
    if (!pages || pm_nested())
        return false;
    struct pm_guard guard = pm_guard_enter();
    bool resized = pm_extent_resize(index, pages);
    if (resized)
        clear_slack(index, size);
    pm_guard_leave(guard);
    return resized;
}

static void *realloc_large(void *p, size_t size) {
    uint32_t index = extent_of(p);
    if (!index) {
        misuse("realloc", p);
        return no_memory();
    }
    return resize(index, size) ? p : move(p, pm_extent_bytes(&pm_extents[index]), size);
}

void *pm_realloc(void *p, size_t size) {
    if (!p)
        return pm_malloc(size);
    if (size == 0) {
        pm_free(p);
        return NULL;
    }
    if (PM_UNLIKELY(pm_boot_owns(p)))
        return move(p, pm_boot_size(p), size);
    unsigned tag = tag_at(p);
    if (tag == PM_TAG_EXTENT)
        return realloc_large(p, size);
    if (tag == PM_TAG_NONE) {
        misuse("realloc", p);
        return no_memory();
    }
    // A block stays where it is while at least half of it is used.
    size_t old = pm_classes[tag].size;
    return size <= old && size * 2 > old ? p : move(p, old, size);
}

bool pm_trim(void) {
    if (pm_phase() != PM_READY || pm_nested())
        return false;
    struct pm_guard guard = pm_guard_enter();
    if (pm_tcache != &pm_no_tcache)
        pm_tcache_flush(pm_tcache);
    bool gave = pm_extent_purge(true);
    pm_guard_leave(guard);
    return gave;
}
