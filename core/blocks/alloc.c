// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "alloc.h"

#include <stdint.h>

#include "age.h"
#include "ahead.h"
#include "base/cancel.h"
#include "base/fallback.h"
#include "base/options.h"
#include "extent_cache.h"
#include "found.h"
#include "kinds.h"
#include "media/backing/backing.h"
#include "media/backing/marks.h"
#include "media/feature.h"
#include "media/full.h"
#include "media/persist.h"
#include "pages/extent_resize.h"
#include "pages/extent_room.h"
#include "pages/extent_standing.h"
#include "pages/extent_take.h"
#include "pages/extent_zero.h"
#include "pages/frontier.h"
#include "pinned.h"
#include "population.h"
#include "returns.h"
#include "take_back.h"

// ---- small --------------------------------------------------------------------------------------

static void *hand_out(void *p, unsigned tag) {
    if (p)
        *pm_tag_at(p) = (uint8_t)tag;
    return p;
}

// `place`: malloc's arena (kinds.h).
static struct pm_arena *arena_for(const struct pm_arena *place, unsigned tag) {
    enum pm_kind kind = pm_tag_is_class(tag) ? PM_KIND_CONSERVATIVE : PM_KIND_POINTER_FREE;
    return &pm_arenas[pm_kind_arena(kind, place->number)];
}

// Of another node.
static void *small_far(const struct pm_arena *place, unsigned tag) {
    return hand_out(pm_arena_far(arena_for(place, tag), pm_tag_class(tag)), tag);
}

// Past the cache, of the arena's node if it has one.
static void *small_direct(const struct pm_arena *place, unsigned tag) {
    void *p = NULL;
    if (pm_arena_fill(arena_for(place, tag), pm_tag_class(tag), &p, 1) == 0)
        return small_far(place, tag);
    return hand_out(p, tag);
}

// Age has its turn at some of a thread's slow requests.
#define AGE_EVERY 32u

static void age(const struct pm_tcache *t) {
    if (t->slow_requests % AGE_EVERY == 0)
        pm_age();
}

// Malloc's arena for a thread, with a cache or without.
static struct pm_arena *own_place(void) {
    return pm_tcache == &pm_no_tcache ? pm_arena_first(pm_node_mine()) : pm_tcache->arena;
}

static void *small_once(unsigned tag) {
    struct pm_tcache *t = pm_tcache;
    if (t == &pm_no_tcache)
        return small_direct(own_place(), tag);
    pm_tcache_answer(t);
    pm_age_notice();
    age(t);
    t = pm_tcache_follow(t);
    if (pm_tcache_free_to_use(t, tag)) {
        if (!t->stack[tag].n && !pm_tcache_refill(t, tag))
            return small_far(t->arena, tag);
        void *p = pm_tcache_pop(t, tag);
        if (p)
            return p;
    }
    return small_direct(t->arena, tag); // an interrupted request or another thread has the stack
}

// How often a request that finds no memory takes back what is kept, and looks again. Other threads
// may be faster, or cache what they free: so it does not try for ever.
#define TRIES 3

// If nothing is kept, but the medium is full, slabs' pages without a block are given back.
static bool more_room(void) {
    return pm_take_back() ||
           (atomic_exchange_explicit(&pm_extent_short, false, memory_order_relaxed) &&
            pm_age_punch());
}

static void fail(void) {
    pm_full_say();
    atomic_fetch_add_explicit(&pm_take_back_counters.failed, 1, memory_order_relaxed);
}

void *pm_alloc_small(unsigned cls) {
    void *p = small_once(cls);
    for (unsigned i = 0; !p && i < TRIES && more_room(); i++)
        p = small_once(cls);
    if (!p)
        fail();
    return p;
}

_Atomic uint64_t pm_alloc_far;

// ---- large --------------------------------------------------------------------------------------

// For a huge extent, some of whose pages may have no space yet. [0, end) are the pages that `size`
// touches. Releases the space after `end`, and allocates space for the last page before it, if that
// page is used in part. False: a store to that page may fail.
static bool trim_slack(const struct pm_extent *e, size_t size, uint64_t end) {
    uint64_t start = e->page << PM_PAGE_SHIFT;
    struct pm_shard *s = pm_shard_at(start);
    pm_lock(&s->lock);
    bool good =
        end == pm_extent_bytes(e) || pm_heap_release_space(start + end, pm_extent_bytes(e) - end);
    good =
        good && (size == end || pm_heap_allocate_space(start + end - PM_PAGE_SIZE, PM_PAGE_SIZE));
    pm_unlock(&s->lock);
    return good;
}

// Clears a reused extent from `size` to its end. The program does not write there, and the
// collector would take pointers of an earlier use for live ones.
static void clear_slack(uint32_t index, size_t size) {
    const struct pm_extent *e = &pm_extents[index];
    uint64_t end = pm_extent_bytes(e);
    if (!pm_heap_on_media())
        return;
    if (!e->backed) {
        end = (size + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
        if (!trim_slack(e, size, end))
            return;
    }
    pm_zero((char *)pm_extent_address(e) + size, end - size);
}

static uint64_t whole_pages(size_t size) { return (size + PM_PAGE_SIZE - 1) >> PM_PAGE_SHIFT; }

// The thread's, or for a thread without a cache the node's first arena's.
static struct pm_extent_cache *own_cache(void) {
    return pm_tcache == &pm_no_tcache ? pm_extent_cache_of(pm_arena_first(pm_node_mine())->number)
                                      : pm_tcache_follow(pm_tcache)->extents;
}

// From the caches, whose extents are of the lengths that pm_large_pages() gives, or longer; huge
// ones stand, and become zeroes if that is `wanted`.
static uint32_t cached(size_t size, uint64_t pages, uint64_t align_pages, bool wanted, bool *zero) {
    if (pages < PM_HUGE_PAGES)
        return pages ? pm_extent_cache_get(own_cache(), pages, align_pages) : 0;
    const struct pm_sought sought = {whole_pages(size), align_pages, PM_KIND_CONSERVATIVE, 0};
    uint32_t index = pm_standing_take(own_cache()->node, &sought);
    *zero = index && wanted && pm_extent_zero(index);
    return index;
}

static uint32_t allocate_on(unsigned node, uint64_t pages, uint64_t align_pages) {
    return pm_makes_ahead() && pages < PM_HUGE_PAGES
               ? pm_ahead_extents(own_cache(), node, pages, align_pages)
               : pm_extent_cache_allocate(node, pages, align_pages);
}

// Of the thread's node, or of others where it has none.
static uint32_t allocate_once(unsigned node, uint64_t pages, uint64_t align_pages) {
    uint32_t index = allocate_on(node, pages, align_pages);
    for (unsigned i = 1; !index && i < pm_nodes.count; i++) {
        index = allocate_on(pm_node_near(node, i), pages, align_pages);
        if (index)
            atomic_fetch_add_explicit(&pm_alloc_far, 1, memory_order_relaxed);
    }
    return index;
}

static uint32_t allocate(uint64_t pages, uint64_t align_pages) {
    unsigned node = own_cache()->node;
    pm_age_notice();
    pm_arenas_age();
    pm_age();
    uint32_t index = allocate_once(node, pages, align_pages);
    bool fits = pages << PM_PAGE_SHIFT <= pm_heap.limit;
    for (unsigned i = 0; !index && fits && i < TRIES && more_room(); i++)
        index = allocate_once(node, pages, align_pages);
    return index;
}

// Huge blocks are not rounded to eighths: up to an eighth of the block would be wasted, and
// clearing it costs more than the rounding saves. They lie so that the kernel can use 2 MiB pages,
// unless only other places are left.
static uint32_t huge(uint64_t pages, uint64_t align_pages) {
    uint64_t best = align_pages > PM_HUGE_PAGES ? align_pages : PM_HUGE_PAGES;
    uint32_t index = allocate(pages, best);
    return index || best == align_pages ? index : allocate(pages, align_pages);
}

static uint32_t uncached(size_t size, uint64_t pages, uint64_t align_pages) {
    if (pages >= PM_HUGE_PAGES)
        return huge(whole_pages(size), align_pages);
    return pages ? allocate(pages, align_pages) : 0;
}

void *pm_alloc_large(size_t size, size_t align, bool *zero) {
    uint64_t pages = pm_large_pages(size), align_pages = align >> PM_PAGE_SHIFT;
    if (align_pages == 0)
        align_pages = 1;
    bool wanted = *zero;
    *zero = false;
    uint32_t index = cached(size, pages, align_pages, wanted, zero);
    if (index)
        return pm_extent_address(&pm_extents[index]);
    index = uncached(size, pages, align_pages);
    if (!index) {
        fail();
        return NULL;
    }
    *zero = pm_extents[index].zero || (wanted && pm_extent_zero(index));
    // The extent already stands in the log. A crash before the clearing is harmless: no pointer to
    // the extent exists before we return it.
    if (!*zero)
        clear_slack(index, size);
    return pm_extent_address(&pm_extents[index]);
}

// ---- free, and blocks as they are ---------------------------------------------------------------

// A block of another node goes to its slab, past the cache.
static void free_small(void *p, unsigned tag) {
    struct pm_tcache *t = pm_tcache;
    bool cacheless = t == &pm_no_tcache;
    bool local = pm_node_of(p) == (cacheless ? pm_node_mine() : t->node);
    if (!cacheless) {
        pm_tcache_answer(t);
        pm_age_notice();
        if (local)
            age(t);
        if (local && pm_tcache_free_to_use(t, tag) && t->stack[tag].n >= t->stack[tag].cap)
            pm_tcache_trim(t, tag);
        // This fails in a handler that interrupted a request of this class, and while another
        // thread takes the blocks.
        if (local && pm_tcache_put(t, p, tag))
            return;
    }
    *pm_tag_at(p) = PM_TAG_NONE;
    if (local)
        pm_arena_return(pm_tag_class(tag), &p, 1);
    else
        pm_remote_free(p);
}

// Before the block is anybody else's.
static void drop_marks(const void *p) {
    uint32_t index = pm_extent_find(p);
    uint64_t from = pm_heap_offset(p);
    if (index)
        pm_marks_drop(from, from + pm_extent_bytes(&pm_extents[index]));
}

// These come in the place of other slow requests.
static void age_by_large(void) {
    struct pm_tcache *t = pm_tcache;
    if (t == &pm_no_tcache)
        return;
    t->slow_requests++;
    age(t);
}

__attribute__((noinline)) static bool free_huge(const void *p) {
    if (pm_marks_any())
        drop_marks(p);
    age_by_large();
    return pm_extent_stand_block(p) || pm_extent_free_block(p);
}

// A block of another node goes to a cache there. The tag says that the block is allocated, so its
// extent is what it was.
static bool free_large(const void *p) {
    pm_age_notice();
    uint32_t index = *pm_page_extent(pm_heap_offset(p) >> PM_PAGE_SHIFT);
    if (__builtin_expect(pm_extents[index].pages > PM_CACHED_PAGES_MAX, 0))
        return free_huge(p);
    struct pm_extent_cache *cache = own_cache();
    unsigned node = pm_node_of(p);
    if (node != cache->node)
        cache = pm_extent_cache_on(cache, node);
    pm_extent_cache_look(cache);
    if (pm_marks_any())
        drop_marks(p);
    return pm_extent_cache_put(cache, pm_granule(p)) || pm_extent_free_block(p);
}

// ---- blocks of a kind ---------------------------------------------------------------------------

static void ready_for_kinds(enum pm_kind kind) {
    if (__atomic_load_n(&pm_arena_count, __ATOMIC_ACQUIRE) < pm_kind_arenas_end(kind)) {
        pm_lock(&pm_tcache_lock);
        pm_arenas_add_kinds(kind);
        pm_unlock(&pm_tcache_lock);
    }
    pm_feature_need(PM_INCOMPAT_KINDS | (pm_kind_is_pinned(kind) ? PM_INCOMPAT_PINNED : 0) |
                    (pm_kind_is_typed(kind) ? PM_INCOMPAT_TYPES : 0));
}

static void *large_of_kind(struct pm_sort sort, size_t size, size_t align) {
    uint64_t pages = whole_pages(size), align_pages = align >> PM_PAGE_SHIFT;
    unsigned node = pm_node_mine();
    if (pm_kind_has_header(sort.kind) && align_pages < PM_SLAB_SIZE / PM_PAGE_SIZE)
        align_pages = PM_SLAB_SIZE / PM_PAGE_SIZE; // its header has a place in slabs.N
    if (size > PM_KIND_PAGES_MAX << PM_PAGE_SHIFT)
        return NULL;
    if (align_pages == 0)
        align_pages = 1;
    const struct pm_sought sought = {pages, align_pages, sort.kind, sort.type};
    uint32_t standing = pm_standing_take(node, &sought);
    if (standing)
        return pm_extent_address(&pm_extents[standing]);
    uint32_t index = pm_extent_cache_take(node, pages, align_pages);
    for (unsigned i = 1; !index && i < pm_nodes.count; i++)
        index = pm_extent_cache_take(pm_node_near(node, i), pages, align_pages);
    if (!index)
        return NULL;
    pm_extents[index].kind = sort.kind;
    pm_extents[index].type = sort.type;
    if (pm_kind_has_header(sort.kind))
        pm_pinned_make_large(&pm_extents[index]);
    return pm_extent_publish(index, false) ? pm_extent_address(&pm_extents[index]) : NULL;
}

static void *pinned_once(enum pm_kind kind, unsigned cls) {
    struct pm_tcache *t = pm_tcache;
    void *p = NULL;
    if (t != &pm_no_tcache) {
        pm_tcache_answer(t);
        t = pm_tcache_follow(t);
        t->slow_requests++;
        age(t);
        p = pm_tcache_add_pinned(t) ? pm_pinned_cache_refill(t->pinned, t->arena->number, kind, cls)
                                    : NULL;
    }
    return p ? p : pm_arena_take_pinned(own_place(), kind, cls);
}

static void *of_kind_once(struct pm_sort sort, size_t size, size_t align) {
    enum pm_kind kind = (enum pm_kind)sort.kind;
    unsigned cls = size > PM_SMALL_MAX ? 0
                   : align <= 16       ? pm_size_to_class(size)
                                       : pm_aligned_class(size, align);
    if (!cls)
        return large_of_kind(sort, size ? size : 1, align);
    return sort.type                 ? pm_arena_take_typed(sort, cls)
           : pm_kind_is_pinned(kind) ? pinned_once(kind, cls)
                                     : small_once(PM_TAG_POINTER_FREE + cls);
}

void *pm_alloc_of_kind(struct pm_sort sort, size_t size, size_t align) {
    if (sort.type)
        sort.kind |= PM_KIND_TYPED;
    ready_for_kinds((enum pm_kind)sort.kind);
    pm_age_notice();
    void *p = of_kind_once(sort, size, align);
    for (unsigned i = 0; !p && i < TRIES && more_room(); i++)
        p = of_kind_once(sort, size, align);
    if (!p)
        fail();
    return p;
}

// Whose memory the thread uses, as of its last look.
static unsigned node_mine(void) {
    return pm_tcache == &pm_no_tcache ? pm_node_mine() : pm_tcache->node;
}

// A pinned block of another node. The tag is cleared by exchange, so of two frees one fails.
static bool free_pinned_far(void *p, unsigned node) {
    if (__atomic_exchange_n(pm_tag_at(p), PM_TAG_NONE, __ATOMIC_RELAXED) != PM_TAG_KIND)
        return false;
    pm_feature_need(PM_INCOMPAT_DEALLOC);
    pm_remote_free_pinned(p, node);
    return true;
}

bool pm_alloc_free_unpinned(void *p) {
    if (!pm_in_range(p) || *pm_tag_at(p) != PM_TAG_KIND ||
        !pm_home_class(pm_slab_home(&pm_vslabs[pm_slab_of(p)])) || pm_node_of(p) == node_mine() ||
        __atomic_exchange_n(pm_tag_at(p), PM_TAG_NONE, __ATOMIC_RELAXED) != PM_TAG_KIND)
        return false;
    pm_remote_free(p);
    return true;
}

static bool free_small_of_kind(void *p, const struct pm_vslab *v) {
    struct pm_tcache *t = pm_tcache;
    if (!pm_kind_is_pinned(v->kind))
        return pm_arena_return_kind(p);
    unsigned node = node_mine();
    if (pm_node_of(p) != node)
        return free_pinned_far(p, node);
    bool cached = !v->type && pm_tcache_add_pinned(t);
    return cached ? pm_pinned_cache_free(t->pinned, p) : pm_arena_return_kind(p);
}

// A pinned block is not allocated on media, durably, before its extent stands for another one.
static bool free_large_pinned(void *p, uint32_t index) {
    const struct pm_extent *e = &pm_extents[index];
    if (!pm_standing_may(e))
        return pm_extent_free_block(p);
    if (__atomic_exchange_n(pm_tag_at(p), PM_TAG_NONE, __ATOMIC_RELAXED) != pm_extent_tag(e))
        return false;
    pm_unpin(p);
    pm_extent_stand(index);
    return true;
}

// The tag says that the block is allocated, so its extent is what it was.
static bool free_large_of_kind(void *p) {
    uint32_t index = *pm_page_extent(pm_heap_offset(p) >> PM_PAGE_SHIFT);
    if (pm_marks_any())
        drop_marks(p);
    age_by_large();
    return pm_kind_is_pinned(pm_extents[index].kind)
               ? free_large_pinned(p, index)
               : pm_extent_stand_block(p) || pm_extent_free_block(p);
}

static bool free_of_kind(void *p) {
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of(p)];
    if (pm_home_class(pm_slab_home(v)))
        return free_small_of_kind(p, v);
    return free_large_of_kind(p);
}

// ---- free ---------------------------------------------------------------------------------------

void pm_alloc_free(void *p, unsigned tag) {
    if (pm_tag_is_cached(tag))
        free_small(p, tag);
    else if (tag == PM_TAG_KIND) {
        if (!free_of_kind(p))
            pm_misuse("free", p);
    } else if (tag == PM_TAG_NONE || !free_large(p))
        pm_misuse("free", p);
}

bool pm_alloc_resize(uint32_t index, size_t size) {
    uint64_t pages = pm_large_pages(size), have = pm_extent_used(&pm_extents[index]);
    if (size <= PM_SMALL_MAX)
        return false;
    // A cached extent may be up to a quarter longer than what was asked for.
    if (have >= whole_pages(size) && have <= pages + pages / 4)
        return true;
    if (!pages || pm_nested())
        return false;
    struct pm_cancel held = pm_cancel_hold();
    bool inside = pm_extent_use_room(index, pages); // where all is zeroes
    bool resized = inside || pm_extent_resize(index, pages);
    if (resized && !inside)
        clear_slack(index, size);
    pm_cancel_release(held);
    return resized;
}
