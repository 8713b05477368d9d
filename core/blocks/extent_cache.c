// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_cache.h"

#include "base/nodes.h"
#include "base/options.h"
#include "base/os.h"
#include "media/backing/marks.h"
#include "media/open/shard_nodes.h"
#include "media/persist.h"
#include "pages/extent_standing.h"
#include "pages/extent_take.h"
#include "pages/frontier.h"

#define TICKS 10u        // of the clock in the decay time
#define OLD 2u           // ticks after which a cached extent leaves
#define LOOK 64u         // frees, of which one looks at the clock
#define LIMIT_PAGES 1024 // pages that an arena caches, or as many as the heap has

static struct pm_extent_cache *caches;
static unsigned cache_count;
// The caches of each node.
static struct group { unsigned first, count; } of_node[PM_NODES_MAX];
struct pm_extent_cache pm_no_extent_cache;
_Atomic uint32_t pm_cached_clock;
bool pm_extent_cache_lost;

enum reason { AGED, NEEDED, TRIMMED, REASONS };
static _Atomic uint64_t gone[REASONS]; // extents

void pm_extent_caches_init(void *zeroed, unsigned arenas) {
    caches = zeroed;
    cache_count = arenas;
}

void pm_extent_caches_of_node(unsigned node, unsigned first, unsigned count) {
    of_node[node] = (struct group){first, count};
}

void pm_extent_caches_begin(unsigned node) {
    struct group group = of_node[node];
    for (unsigned i = group.first; i < group.first + group.count; i++)
        caches[i].node = (uint16_t)node;
}

struct pm_extent_cache *pm_extent_cache_of(unsigned arena) {
    return &caches[arena];
}

struct pm_extent_cache *pm_extent_cache_on(const struct pm_extent_cache *own, unsigned node) {
    struct group group = of_node[node];
    struct pm_extent_cache *cache = &caches[group.first + (unsigned)(own - caches) % group.count];
    // No thread of the node may have needed it yet. Two threads store the same.
    if (__atomic_load_n(&cache->node, __ATOMIC_RELAXED) != node)
        __atomic_store_n(&cache->node, (uint16_t)node, __ATOMIC_RELAXED);
    return cache;
}

// ---- requests that the own lists cannot answer --------------------------------------------------

static void count(_Atomic uint64_t *counter) {
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static uint32_t get(struct pm_extent_cache *cache, uint64_t pages, uint64_t align_pages) {
    uint32_t index = pm_cached_take(cache, pm_size_list(pages));
    struct pm_extent *e = &pm_extents[index];
    if (index && e->page & (align_pages - 1)) {
        pm_list_push(&cache->list[pm_size_list(e->pages)], index, e);
        index = 0;
    }
    if (!index)
        return 0;
    pm_cached_add_room(cache, e->pages);
    pm_cached_set_tag(cache, e);
    return index;
}

uint32_t pm_extent_cache_get(struct pm_extent_cache *cache, uint64_t pages, uint64_t align_pages) {
    struct group group = of_node[cache->node];
    unsigned own = (unsigned)(cache - caches) - group.first;
    uint32_t index = get(cache, pages, align_pages);
    if (index)
        return index;
    for (unsigned i = 1; !index && i < group.count; i++)
        index = get(&caches[group.first + (own + i) % group.count], pages, align_pages);
    count(index ? &cache->stolen : &cache->misses);
    return index;
}

void pm_extent_cache_adopt(struct pm_extent_cache *cache, const uint32_t *index, unsigned count) {
    if (count && !cache->extents)
        pm_extent_cache_look(cache); // fills in what the cached path reads
    for (unsigned i = 0; i < count; i++) {
        struct pm_extent *e = &pm_extents[index[i]];
        e->older = atomic_load_explicit(&pm_cached_clock, memory_order_relaxed);
        pm_cached_add_room(cache, -(int64_t)e->pages);
        pm_list_push(&cache->list[pm_size_list(e->pages)], index[i], e);
    }
}

// ---- what leaves the caches ---------------------------------------------------------------------

// Extents on their way out, linked by `next`; a first one of 0: none.
struct chain {
    uint32_t first, last;
    uint64_t count;
};

static void chain_add(struct chain *chain, uint32_t index) {
    *(chain->first ? &pm_extents[chain->last].next : &chain->first) = index;
    chain->last = index;
    chain->count++;
}

// Extents that are in a list for `age` ticks or longer, at its end, leave: nobody wanted them.
// Returns how many pages it has.
static int64_t cut_list(pm_extent_list *list, uint32_t age, struct chain *chain) {
    uint32_t now = atomic_load_explicit(&pm_cached_clock, memory_order_relaxed);
    uint32_t first = pm_list_seize(list), kept = 0, at = first;
    int64_t pages = 0;
    for (; at && now - pm_extents[at].older < age; at = pm_extents[at].next)
        kept = at;
    for (; at; at = pm_extents[at].next) {
        chain_add(chain, at);
        pages += pm_extents[at].pages;
    }
    if (kept)
        pm_list_push(list, first, &pm_extents[kept]);
    return pages;
}

static struct group everything(void) { return (struct group){0, cache_count}; }

static bool cut(struct group group, uint32_t age, enum reason reason) {
    struct chain chain = {0};
    for (unsigned i = group.first; i < group.first + group.count; i++)
        for (unsigned list = 0; list < PM_CACHED_LISTS; list++) {
            int64_t pages = cut_list(&caches[i].list[list], age, &chain);
            if (!pages)
                continue; // a cache that was never used stays memory that was never written
            pm_cached_add_room(&caches[i], pages);
            if (reason != NEEDED)
                atomic_store_explicit(&caches[i].want[list], 0, memory_order_relaxed);
        }
    atomic_fetch_add_explicit(&gone[reason], chain.count, memory_order_relaxed);
    pm_extent_release_all(chain.first);
    return chain.count != 0;
}

// ---- age ----------------------------------------------------------------------------------------

// At the first look, for the range may move until the heap is open. Before it, the cache is empty
// and finds no block. Release: who sees `granules` sees the rest; two threads store the same.
static void fill_in(struct pm_extent_cache *cache) {
    cache->tag = pm_tag;
    cache->base = pm_base;
    cache->page_map = pm_page_map;
    cache->extents = pm_extents;
    struct pm_node_memory range = pm_node_memory(cache->node);
    cache->from = range.offset >> PM_GRANULE_SHIFT;
    atomic_store_explicit(&cache->granules, range.bytes >> PM_GRANULE_SHIFT, memory_order_release);
}

static void set_limit(struct pm_extent_cache *cache) {
    uint64_t bytes = atomic_load_explicit(&pm_heap.length, memory_order_relaxed);
    int64_t heap = (int64_t)(bytes >> PM_PAGE_SHIFT);
    int64_t limit = heap > LIMIT_PAGES ? heap : LIMIT_PAGES;
    if (!pm_options.decay_ms.number)
        limit = 0;
    int64_t before = atomic_exchange_explicit(&cache->limit, limit, memory_order_relaxed);
    pm_cached_add_room(cache, limit - before);
    uint64_t frees = atomic_load_explicit(&cache->frees, memory_order_relaxed);
    atomic_store_explicit(&cache->look_at, frees + LOOK, memory_order_relaxed);
}

void pm_extent_cache_age(void) {
    uint64_t decay = pm_options.decay_ms.number;
    if (!decay)
        return;
    uint32_t now = (uint32_t)(pm_os_now_ms() * TICKS / decay);
    uint32_t seen = atomic_load_explicit(&pm_cached_clock, memory_order_relaxed);
    // One thread a tick. Relaxed: the lists order what is in them themselves.
    if (now != seen &&
        atomic_compare_exchange_strong_explicit(&pm_cached_clock, &seen, now, memory_order_relaxed,
                                                memory_order_relaxed))
        cut(everything(), OLD, AGED);
}

void pm_extent_cache_look(struct pm_extent_cache *cache) {
    if (!atomic_load_explicit(&cache->granules, memory_order_relaxed))
        fill_in(cache);
    if (atomic_load_explicit(&pm_frees_watched, memory_order_relaxed) || pm_marks_any())
        atomic_store_explicit(&cache->granules, 0, memory_order_relaxed);
    set_limit(cache);
    pm_extent_cache_age();
}

_Atomic bool pm_frees_watched;

void pm_extent_caches_watch(void) {
    for (unsigned i = 0; i < cache_count; i++)
        if (atomic_load_explicit(&caches[i].granules, memory_order_relaxed))
            atomic_store_explicit(&caches[i].granules, 0, memory_order_relaxed);
}

void pm_extent_caches_look_soon(void) {
    for (unsigned i = 0; i < cache_count; i++)
        if (atomic_load_explicit(&caches[i].look_at, memory_order_relaxed))
            pm_extent_cache_look_soon(&caches[i]);
}

// ---- need ---------------------------------------------------------------------------------------

static uint64_t cached_pages(struct group group) {
    int64_t pages = 0;
    for (unsigned i = group.first; i < group.first + group.count; i++)
        pages += atomic_load_explicit(&caches[i].limit, memory_order_relaxed) -
                 atomic_load_explicit(&caches[i].room, memory_order_relaxed);
    return pages > 0 ? (uint64_t)pages : 0;
}

static uint64_t used_pages(void) {
    uint64_t pages = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pages += __atomic_load_n(&pm_heap.shard[i].extents->active.pages, __ATOMIC_RELAXED);
    return pages;
}

// While this much is cached the heap does not grow. Where a flush waits, extents made ahead are
// included, and some of it is of another size than what is wanted.
static uint64_t too_much(void) {
    return PM_REGION_PAGES + (pm_persist_waits() ? PM_REGION_PAGES + used_pages() / 4 : 0);
}

uint64_t pm_extent_cache_spare(const struct pm_extent_cache *cache) {
    uint64_t most = PM_REGION_PAGES + used_pages() / 8;
    uint64_t cached = cached_pages(of_node[cache->node]);
    return most > cached ? most - cached : 0;
}

typedef uint32_t ask_fn(unsigned node, uint64_t pages, uint64_t align_pages, bool grow);

static uint32_t ask(ask_fn *take, unsigned node, uint64_t pages, uint64_t align_pages) {
    struct group group = of_node[node];
    pm_extent_cache_age();
    uint32_t index = take(node, pages, align_pages, false);
    if (!index && cached_pages(group) >= too_much() && cut(group, 0, NEEDED))
        index = take(node, pages, align_pages, false);
    if (!index)
        index = take(node, pages, align_pages, true);
    if (!index && cut(group, 0, NEEDED))
        index = take(node, pages, align_pages, true);
    return index;
}

uint32_t pm_extent_cache_allocate(unsigned node, uint64_t pages, uint64_t align_pages) {
    return ask(pm_extent_allocate_on, node, pages, align_pages);
}

uint32_t pm_extent_cache_take(unsigned node, uint64_t pages, uint64_t align_pages) {
    return ask(pm_extent_take_on, node, pages, align_pages);
}

uint32_t pm_extent_cache_take_bare(unsigned node, uint64_t pages, uint64_t align_pages) {
    return ask(pm_extent_take_bare_on, node, pages, align_pages);
}

// ---- ends ---------------------------------------------------------------------------------------

bool pm_extent_cache_trim(void) { return cut(everything(), 0, TRIMMED); }

static void forget_lists(void) {
    for (unsigned i = 0; i < cache_count; i++) {
        int64_t limit = atomic_load_explicit(&caches[i].limit, memory_order_relaxed);
        for (unsigned list = 0; list < PM_CACHED_LISTS; list++)
            pm_list_seize(&caches[i].list[list]);
        if (atomic_load_explicit(&caches[i].room, memory_order_relaxed) != limit)
            atomic_store_explicit(&caches[i].room, limit, memory_order_relaxed);
    }
}

void pm_extent_cache_orphans(void) {
    forget_lists();
    pm_extent_cache_lost = true;
}

// By the tags, not by the lists: so it finds what a forked child or a cancelled thread has lost.
void pm_extent_cache_end(void) {
    struct chain chain = {0};
    forget_lists();
    pm_standing_forget();
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extent_is_cached(&pm_extents[i]))
            chain_add(&chain, i);
    if (chain.first)
        pm_extents[chain.last].next = 0;
    pm_extent_release_all(chain.first);
    pm_extent_cache_lost = false;
}

// ---- figures and checks -------------------------------------------------------------------------

void pm_extent_cache_stats(struct pm_extent_cache_stats *out) {
    *out = (struct pm_extent_cache_stats){
        .aged = atomic_load_explicit(&gone[AGED], memory_order_relaxed),
        .needed = atomic_load_explicit(&gone[NEEDED], memory_order_relaxed),
        .trimmed = atomic_load_explicit(&gone[TRIMMED], memory_order_relaxed)};
    for (unsigned i = 0; i < cache_count; i++) {
        out->frees += atomic_load_explicit(&caches[i].frees, memory_order_relaxed);
        out->stolen += atomic_load_explicit(&caches[i].stolen, memory_order_relaxed);
        out->misses += atomic_load_explicit(&caches[i].misses, memory_order_relaxed);
    }
}

bool pm_extent_cache_each(bool (*fn)(uint32_t index, unsigned list, void *arg), void *arg) {
    for (unsigned i = 0; i < cache_count; i++)
        for (unsigned list = 0; list < PM_CACHED_LISTS; list++) {
            uint32_t at = (uint32_t)(caches[i].list[list] & PM_LIST_INDEX);
            for (; at; at = pm_extents[at].next)
                if (!fn(at, list, arg))
                    return false;
        }
    return true;
}
