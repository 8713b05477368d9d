// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Extent caches: each arena keeps the extents of freed large blocks, with their entries in the log,
// and hands them out again. That takes no lock, no flush and no system call. An extent cache has a
// list for each length. Extents of huge blocks stand instead (pages/extent_standing.h).
//
//   malloc   list -> extent     tag: none -> extent
//   free     extent -> list     tag: extent -> none, by exchange: of two frees of a block one fails
//
// Why the entry may stand. The log must name every extent that the program can reach, and no page
// twice. It may name more. A cached extent has no block, so the program has no pointer into it;
// after a crash the collector finds it unmarked and frees it (or marks it, by a stale word: then it
// is garbage for one more run, as any small block may be). It overlaps nothing: its pages stay its
// own until the end of its entry is durable. Its length on media is right for each block that it
// ever has. So requests that a cache answers change nothing on media. A cut at any point of them
// is a cut before or after them, and there is nothing to undo.
//
// What a block may find in its extent. The program gets whatever is there, as malloc's contract
// says. The end of the extent, which it did not ask for, is at most a fifth, or two fifths where
// the extent is longer than needed. Words of an earlier block of this very extent may stand there,
// and the collector may take them for pointers. The same is true of the end of a small block. It is
// bounded as there: by the length of the block, and by its life. The end is cleared where the
// extent is new or has another length (alloc.c), for only then it may have more than one block's
// words.
//
// What ends an entry:
//
//   age      nobody wanted the extent for a tenth to a fifth of the decay time (PMALLOC_DECAY_MS)
//   need     the heap would grow while a region or more is cached, or memory is out: all of it
//   trim     malloc_trim: all of it
//   close    the clean close: all of it, so that exactly the extents in use stand in the log
//   no room  an arena caches up to 4 MiB or, where that is more, what the heap was long at the last
//            look at the clock: what is freed beyond that
//
// So a program that frees all of its blocks and allocates them again finds them in the caches. Age
// and need bound what is cached.
//
// With PMALLOC_DECAY_MS=0 nothing is cached.
#ifndef PM_EXTENT_CACHE_H
#define PM_EXTENT_CACHE_H

#include <stdbool.h>

#include "extent_list.h"
#include "pages/free_extents.h"

#define PM_CACHED_LISTS 56u // pm_size_list() of every length that is cached

struct pm_extent_cache {
    _Atomic int64_t room; // pages that may yet be cached; a little less than 0 by chance
    // Frees into this cache. An estimate: threads that share the arena may overwrite each other's.
    _Atomic uint64_t frees;
    _Atomic uint64_t look_at; // at this number the next free looks at the clock
    // Copies, to lie in the same line: pm_tag, pm_base, pm_page_map, pm_extents.
    uint8_t *tag;
    uint64_t base;
    uint32_t *page_map;
    struct pm_extent *extents;
    // The memory of its node: the first granule, and how many; 0 until the first look at the clock.
    uint64_t from;
    _Atomic uint64_t granules;

    uint16_t node;
    _Atomic int64_t limit;   // of the lists' pages; 0 until the first look at the clock
    _Atomic uint64_t stolen; // requests that another arena's cache has answered
    _Atomic uint64_t misses; // requests that no cache could answer
    pm_extent_list list[PM_CACHED_LISTS];
    _Atomic uint8_t want[PM_CACHED_LISTS]; // of each length in the next group (ahead.h)
} __attribute__((aligned(64)));

extern _Atomic uint32_t pm_cached_clock; // in tenths of the decay time

extern struct pm_extent_cache pm_no_extent_cache; // empty, and without room
// Frees are watched (process/entry.h): no cached path takes them. Set once, and for good.
extern _Atomic bool pm_frees_watched;
// One for each arena, in zeroed memory of the caller's. Then says which arenas are of a node.
void pm_extent_caches_init(void *zeroed, unsigned arenas);
void pm_extent_caches_of_node(unsigned node, unsigned first, unsigned count);
// A node is used from now on.
void pm_extent_caches_begin(unsigned node);
struct pm_extent_cache *pm_extent_cache_of(unsigned arena);
// A cache of another node, for frees by threads that use `own`.
struct pm_extent_cache *pm_extent_cache_on(const struct pm_extent_cache *own, unsigned node);

// Left to itself, the compiler makes calls of it, which cost an eighth more.
#define PM_CACHED_PATH static inline __attribute__((always_inline))

// ---- the cached path: in any handler ------------------------------------------------------------

static inline void pm_cached_add_room(struct pm_extent_cache *cache, int64_t pages) {
    atomic_fetch_add_explicit(&cache->room, pages, memory_order_relaxed);
}

static inline void pm_cached_set_tag(struct pm_extent_cache *cache, const struct pm_extent *e) {
    __atomic_store_n(&cache->tag[pm_tag_index_of_page(e->page)], PM_TAG_EXTENT, __ATOMIC_RELAXED);
}

// Takes an extent from `list` or, where that is empty, one that is up to a quarter longer.
static inline uint32_t pm_cached_take(struct pm_extent_cache *cache, unsigned list) {
    unsigned last = list + (list < 8 ? 1 : 2);
    uint32_t index = pm_list_pop(&cache->list[list], &cache->extents);
    while (__builtin_expect(!index, 0) && list < last && ++list < PM_CACHED_LISTS)
        index = pm_list_pop(&cache->list[list], &cache->extents);
    return index;
}

// Returns a block of `size` bytes, which is over PM_SMALL_MAX. NULL: there is none here.
PM_CACHED_PATH void *pm_extent_cache_malloc(struct pm_extent_cache *cache, size_t size) {
    unsigned list = pm_large_list(size);
    uint32_t index = list < PM_CACHED_LISTS ? pm_cached_take(cache, list) : 0;
    if (!index)
        return NULL;
    const struct pm_extent *e = &cache->extents[index];
    uint64_t offset = e->page << PM_PAGE_SHIFT;
    pm_cached_add_room(cache, e->pages);
    pm_cached_set_tag(cache, e);
    return (void *)(uintptr_t)(cache->base + offset);
}

// Frees the large block at a granule of the heap into the cache. False, and nothing has changed:
// there is no such block, it is huge or has pages without space (its next block may be longer than
// its last), the cache has no room, or it is time to look at the clock.
PM_CACHED_PATH bool pm_extent_cache_put(struct pm_extent_cache *cache, uint64_t granule) {
    uint8_t *tag = &cache->tag[pm_tag_index(granule)];
    if (__atomic_load_n(tag, __ATOMIC_RELAXED) != PM_TAG_EXTENT ||
        __atomic_exchange_n(tag, PM_TAG_NONE, __ATOMIC_RELAXED) != PM_TAG_EXTENT)
        return false;
    // From here on the extent is ours: nobody else changes or frees it.
    uint64_t page = granule >> (PM_PAGE_SHIFT - PM_GRANULE_SHIFT);
    uint32_t index = cache->page_map[pm_page_map_index(page)];
    struct pm_extent *e = &cache->extents[index];
    uint32_t pages = e->pages;
    uint64_t frees = atomic_load_explicit(&cache->frees, memory_order_relaxed);
    if (pages > PM_CACHED_PAGES_MAX || !e->backed ||
        atomic_load_explicit(&cache->room, memory_order_relaxed) < pages ||
        frees >= atomic_load_explicit(&cache->look_at, memory_order_relaxed)) {
        __atomic_store_n(tag, PM_TAG_EXTENT, __ATOMIC_RELAXED);
        return false;
    }
    atomic_store_explicit(&cache->frees, frees + 1, memory_order_relaxed);
    // When it came. A list is in the order of coming, the newest first.
    e->older = atomic_load_explicit(&pm_cached_clock, memory_order_relaxed);
    pm_cached_add_room(cache, -(int64_t)pages);
    pm_list_push(&cache->list[pm_size_list(pages)], index, e);
    return true;
}

// Frees the large block at `p`, of the cache's node.
PM_CACHED_PATH bool pm_extent_cache_free(struct pm_extent_cache *cache, const void *p) {
    uint64_t granules = atomic_load_explicit(&cache->granules, memory_order_acquire);
    uint64_t granule = pm_granule_from(cache->base, p);
    return granule - cache->from < granules && pm_extent_cache_put(cache, granule);
}

// The next free takes the slow path, whatever the cache has room for.
static inline void pm_extent_cache_look_soon(struct pm_extent_cache *cache) {
    atomic_store_explicit(&cache->look_at, 0, memory_order_relaxed);
}

// ---- the slow path ------------------------------------------------------------------------------

// Looks at the clock, and frees what has been cached for too long.
void pm_extent_cache_look(struct pm_extent_cache *cache);
// The cached path of free finds no block any more. pm_frees_watched has been set, or there is a
// mark (media/backing/marks.h).
void pm_extent_caches_watch(void);
// Makes the next free into each cache look.
void pm_extent_caches_look_soon(void);
// Frees what has been cached for too long, in all caches.
void pm_extent_cache_age(void);
// Returns an extent with the tag of a block, from the arena's cache or from others of its node.
// `pages` is what pm_large_pages() gives, less than PM_HUGE_PAGES. 0: there is none.
uint32_t pm_extent_cache_get(struct pm_extent_cache *cache, uint64_t pages, uint64_t align_pages);
// pm_extent_allocate_on(), pm_extent_take_on() and pm_extent_take_bare_on(). Before the heap grows,
// and before memory is out, all that the node's caches have becomes free.
uint32_t pm_extent_cache_allocate(unsigned node, uint64_t pages, uint64_t align_pages);
uint32_t pm_extent_cache_take(unsigned node, uint64_t pages, uint64_t align_pages);
uint32_t pm_extent_cache_take_bare(unsigned node, uint64_t pages, uint64_t align_pages);
// How many more pages may be made ahead for the node of the cache (ahead.h).
uint64_t pm_extent_cache_spare(const struct pm_extent_cache *cache);
// Takes extents that no block has been in yet; their entries stand, and they have no tag.
void pm_extent_cache_adopt(struct pm_extent_cache *cache, const uint32_t *index, unsigned count);
// Frees all that is cached, for malloc_trim. True: there was something.
bool pm_extent_cache_trim(void);

// ---- for the only thread ------------------------------------------------------------------------

// At the clean close: frees all that is cached or lost.
void pm_extent_cache_end(void);
// In a forked child: other threads were in the midst of requests, so the lists cannot be believed.
// The extents that they name are lost until the clean close or the next recovery.
void pm_extent_cache_orphans(void);
extern bool pm_extent_cache_lost;
// Calls `fn` for each cached extent until it returns false. Returns false if it did.
bool pm_extent_cache_each(bool (*fn)(uint32_t index, unsigned list, void *arg), void *arg);

// Requests, and extents that left the caches, by the reason.
struct pm_extent_cache_stats {
    uint64_t frees, stolen, misses, aged, needed, trimmed;
};
void pm_extent_cache_stats(struct pm_extent_cache_stats *out);

#endif
