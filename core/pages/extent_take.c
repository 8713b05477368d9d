// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent_take.h"

#include "base/nodes.h"
#include "extent_entry.h"
#include "extent_standing.h"
#include "free_extents.h"
#include "frontier.h"
#include "media/backing/backing.h"
#include "media/backing/fixed.h"
#include "media/backing/volume.h"
#include "media/open/shard_make.h"

// Space is allocated on the file system in steps of at least and at most this number of pages.
#define STEP_SHARE 8u // of the pages in use
#define STEP_PAGES_MIN 16u
#define STEP_PAGES_MAX 512u

_Atomic bool pm_extent_short;

// All shards ask the same file system for space. Whether a huge block of one was promised some.
static bool any_promises(void) {
    bool any = false;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        any |= __atomic_load_n(&pm_heap.shard[i].extents->promises, __ATOMIC_RELAXED);
    return any;
}

// Pages that active and reclaimed extents may have in the end. The holes of slabs are not promised
// anything: a page of them that gets its space back is asked for anew.
static uint64_t promised_pages(const struct pm_shard_extents *x) {
    return __atomic_load_n(&x->active.pages, __ATOMIC_ACQUIRE) -
           __atomic_load_n(&x->active.holes, __ATOMIC_ACQUIRE) +
           __atomic_load_n(&x->reclaimed.pages, __ATOMIC_ACQUIRE);
}

// Bytes that the extents of other shards may still ask for. Their locks are not held: `asked` is
// read first, and becomes 0 only after the extent is among the active ones.
static uint64_t promised_elsewhere(const struct pm_shard *s) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        struct pm_shard *other = &pm_heap.shard[i];
        if (other == s)
            continue;
        uint64_t asked = atomic_load(&other->extents->asked);
        uint64_t pages = asked + promised_pages(other->extents);
        sum += pm_shard_outstanding(other, pages << PM_PAGE_SHIFT);
    }
    return sum;
}

// Whether the file system has room for `pages` more pages beside everything that active and
// reclaimed extents may still ask for. *known becomes whether the file system can say. Each of two
// shards first says what it asks for, and then looks at the other: sequentially consistent.
static bool room_for(struct pm_shard *s, uint64_t pages, bool *known) {
    struct pm_shard_extents *x = s->extents;
    atomic_store(&x->asked, pages);
    uint64_t elsewhere = promised_elsewhere(s);
    return pm_shard_has_room(s, (pages << PM_PAGE_SHIFT) + elsewhere,
                             promised_pages(x) << PM_PAGE_SHIFT, known);
}

bool pm_extent_has_room(struct pm_shard *s, uint64_t pages) {
    bool known = true;
    return !any_promises() || room_for(s, pages, &known) || !known;
}

void pm_extent_asked(struct pm_shard *s) {
    if (atomic_load_explicit(&s->extents->asked, memory_order_relaxed))
        atomic_store_explicit(&s->extents->asked, 0, memory_order_release);
}

static bool allocate_space(struct pm_shard *s, const struct pm_extent *e, uint64_t pages) {
    bool good = pm_extent_has_room(s, pages) &&
                pm_heap_allocate_space(e->page << PM_PAGE_SHIFT, pages << PM_PAGE_SHIFT);
    if (!good)
        atomic_store_explicit(&pm_extent_short, true, memory_order_relaxed);
    return good;
}

// Under PMALLOC_RESERVE=lazy a huge block is promised its space, if the file system can say that it
// has room: the pages get it when they are touched. Else the space is allocated now.
static bool promise_huge(struct pm_shard *s, const struct pm_extent *e, uint64_t pages) {
    struct pm_shard_extents *x = s->extents;
    bool known = false, room = false;
    if (pm_reserve_is_lazy()) {
        bool reclaimed = e->state == PM_EXTENT_RECLAIMED; // room_for() counts it already
        if (reclaimed && !x->gaps_unpromised)
            return true;
        room = room_for(s, reclaimed ? 0 : pages, &known);
        x->gaps_unpromised = x->gaps_unpromised && !(known && room);
    }
    if (known)
        __atomic_store_n(&x->promises, true, __ATOMIC_RELAXED);
    return known ? room : allocate_space(s, e, pages);
}

static bool back_huge(struct pm_shard *s, const struct pm_extent *e, uint64_t pages, bool *empty) {
    return promise_huge(s, e, pages) &&
           (!pm_reserve_is_lazy() ||
            pm_heap_promise_space(e->page << PM_PAGE_SHIFT, pages << PM_PAGE_SHIFT, empty));
}

// Set first: who takes space from now on leaves room for it.
bool pm_extent_may_promise(struct pm_shard *s) {
    bool known = true;
    __atomic_store_n(&s->extents->promises, true, __ATOMIC_RELAXED);
    bool room = room_for(s, 0, &known);
    pm_extent_asked(s);
    return room && known;
}

// Makes sure that touching the first *pages pages of an extent cannot fail. More than that may be
// allocated, in steps that grow with the heap, so that the file system is asked less often. *pages
// becomes how many have space now, and *empty true if they are new memory, which has zeroes.
static bool back_with_space(struct pm_shard *s, struct pm_extent *e, uint64_t *pages, bool *empty) {
    uint64_t active = s->extents->active.pages;
    uint64_t want = *pages, step = active / STEP_SHARE, least = pm_heap_unit() >> PM_PAGE_SHIFT;
    if (want > PM_HUGE_PAGES)
        return back_huge(s, e, want, empty);
    if (least < STEP_PAGES_MIN)
        least = STEP_PAGES_MIN;
    step = step < least ? least : 1ull << (63 - __builtin_clzll(step));
    step = step > STEP_PAGES_MAX ? STEP_PAGES_MAX : step;
    uint64_t end = (e->page + want + step - 1) & ~(step - 1); // aligned, so huge pages can be used
    want = end - e->page < e->pages ? end - e->page : e->pages;
    if (allocate_space(s, e, want)) {
        *pages = want;
        return true;
    }
    return allocate_space(s, e, *pages);
}

// Whether a slab can do without space for now. The pages are zeroes, so nobody will clear them.
static bool can_be_bare(const struct pm_extent *e) {
    return e->state == PM_EXTENT_RETAINED && !e->backed && e->zero &&
           pm_extent_may_be_bare(e->page << PM_PAGE_SHIFT);
}

static uint32_t carve(struct pm_shard *s, uint32_t index, uint64_t pages, uint64_t align,
                      bool bare) {
    struct pm_extent *e = &pm_extents[index];
    enum pm_extent_state state = (enum pm_extent_state)e->state;
    uint64_t first = (e->page + align - 1) & ~(align - 1);
    pm_free_remove(s, index);
    if (first > e->page) {
        uint32_t rest = pm_extent_cut(s, index, first - e->page);
        pm_free_insert(s, index, state);
        if (!rest)
            return 0;
        e = &pm_extents[index = rest];
    }
    uint64_t backed = pages;
    bool empty = false;
    bare = bare && can_be_bare(e);
    if (!e->backed && !bare && !back_with_space(s, e, &backed, &empty)) {
        pm_free_coalesce(s, index, state);
        return 0;
    }
    bool lazy = !e->backed && pages > PM_HUGE_PAGES && pm_reserve_is_lazy();
    if (e->pages > backed) {
        uint32_t rest = pm_extent_cut(s, index, backed);
        if (!rest) {
            pm_free_coalesce(s, index, state);
            return 0;
        }
        pm_free_coalesce(s, rest, state);
    }
    e->backed = !lazy && !bare;
    if (e->pages > pages) {
        uint32_t rest = pm_extent_cut(s, index, pages);
        if (!rest) {
            pm_free_coalesce(s, index, PM_EXTENT_RECLAIMED);
            return 0;
        }
        pm_free_coalesce(s, rest, PM_EXTENT_RECLAIMED);
    }
    e->state = PM_EXTENT_ACTIVE;
    e->zero |= empty;
    e->log = PM_LOG_NOWHERE;
    e->used = 0;
    pm_bounds_set(e, index);
    struct pm_active *active = &s->extents->active;
    active->pages += pages;
    active->count++;
    e->holes = bare ? (uint16_t)pages : 0;
    active->holes += e->holes;
    return index;
}

uint32_t pm_extent_carve(struct pm_shard *s, uint32_t index, uint64_t pages, uint64_t align) {
    uint32_t taken = carve(s, index, pages, align, false);
    pm_extent_asked(s);
    return taken;
}

// Pages to add so that an aligned run of `pages` ends at the frontier; uses the retained extent at
// the end, if there is one.
static uint64_t missing(const struct pm_shard *s, uint64_t pages, uint64_t align) {
    uint64_t from = pm_shard_end(s), to = from;
    const struct pm_extent *last = s->frontier ? &pm_extents[*pm_page_extent(from - 1)] : NULL;
    if (last && last->state == PM_EXTENT_RETAINED)
        from = last->page;
    uint64_t end = ((from + align - 1) & ~(align - 1)) + pages;
    return end > to ? end - to : 1;
}

// How many pages may stay reclaimed when a request finds none of them long enough: KEPT_PAGES, and
// one page for every KEPT_SHARE pages in use. Of what is above that, the request gives back at most
// twice its own size. So the heap does not grow by kept space and by new space at once; and when
// recovery has left much free space, one request does not pay for all of it.
#define KEPT_SHARE 2
#define KEPT_PAGES 1024u

static uint32_t take(struct pm_shard *s, uint64_t pages, uint64_t align, bool grow, bool bare) {
    struct pm_shard_extents *x = s->extents;
    // A huge request that nothing standing fits looks for the best place among all that is free.
    if (pages > PM_CACHED_PAGES_MAX)
        pm_standing_end(s, 0);
    uint32_t fit = pm_free_fit(&x->reclaimed, pages, align);
    // Before new space is used, what stands becomes free: so it takes no space besides.
    if (!fit && pm_standing_end(s, 0))
        fit = pm_free_fit(&x->reclaimed, pages, align);
    if (!fit) {
        uint64_t share = KEPT_PAGES + x->active.pages / KEPT_SHARE, kept = x->reclaimed.pages;
        uint64_t less = kept > 2 * pages ? kept - 2 * pages : 0;
        pm_extent_purge_to(s, share > less ? share : less);
        fit = pm_free_fit(&x->retained, pages, align);
    }
    if (!fit && !grow)
        return 0;
    if (!fit && pm_frontier_grow(s, missing(s, pages, align)))
        fit = pm_free_fit(&x->retained, pages, align);
    // Still none: the new pages did not merge with the free end, because together they are longer
    // than an extent can be. Add enough for the run alone, whatever its alignment.
    if (!fit && pm_frontier_grow(s, pages + align - 1))
        fit = pm_free_fit(&x->retained, pages, align);
    uint32_t taken = fit ? carve(s, fit, pages, align, bare) : 0;
    pm_extent_asked(s);
    return taken;
}

static uint32_t take_from(struct pm_shard *s, uint64_t pages, uint64_t align_pages, bool grow,
                          bool bare) {
    if (pages == 0 || pages > PM_ENTRY_PAGES_MAX || align_pages > PM_ENTRY_PAGES_MAX)
        return 0;
    pm_extent_decay(s);
    uint32_t index = take(s, pages, align_pages, grow, bare);
    if (!index && grow && (pm_standing_end(s, 0) || s->extents->reclaimed.pages)) {
        // The shard is at its limit, or the file system is full. Give back all that is kept and try
        // again.
        pm_extent_purge_to(s, 0);
        index = take(s, pages, align_pages, true, bare);
    }
    return index;
}

static uint32_t take_locked(struct pm_shard *s, uint64_t pages, uint64_t align_pages, bool grow) {
    return take_from(s, pages, align_pages, grow, false);
}

static uint32_t take_bare_locked(struct pm_shard *s, uint64_t pages, uint64_t align_pages,
                                 bool grow) {
    return take_from(s, pages, align_pages, grow, true);
}

// Whether a shard of the node could grow by as much as its limit says. Then only space is short,
// and another shard would not help. Where shards take turns in several directories, there must be
// one in each: the others may lie on a full file system.
static bool has_addresses(unsigned node, uint64_t bytes) {
    bool turns = pm_nodes.count == 1 && pm_heap_on_media();
    unsigned good = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        uint64_t used = __atomic_load_n(&s->frontier, __ATOMIC_RELAXED) + PM_REGION_SIZE;
        if (s->node == node && used <= s->limit && s->limit - used >= bytes)
            good |= 1u << (turns ? s->volume : 0);
    }
    return good == (1u << (turns ? pm_heap.volumes : 1)) - 1;
}

// Makes another shard of the node, unless one has come since there were `seen`. A request that no
// shard of this size could serve makes none.
static bool another_shard(unsigned seen, unsigned node, uint64_t pages, uint64_t align_pages) {
    struct pm_shard *first = &pm_heap.shard[0];
    if (pages > PM_ENTRY_PAGES_MAX || align_pages > PM_ENTRY_PAGES_MAX ||
        pages << PM_PAGE_SHIFT > pm_shard_room())
        return false;
    uint64_t bytes = pages << PM_PAGE_SHIFT, aligned = (pages + align_pages) << PM_PAGE_SHIFT;
    unsigned volumes = pm_volumes_arrived();
    if (volumes == pm_heap.volumes && (!pm_heap_may_grow(bytes) || has_addresses(node, aligned)))
        return false;
    pm_lock(&first->lock);
    pm_heap.volumes = volumes > pm_heap.volumes ? volumes : pm_heap.volumes;
    bool good = pm_heap_may_grow(bytes) && !has_addresses(node, aligned) &&
                (pm_heap.shards > seen || pm_shard_make(node));
    pm_unlock(&first->lock);
    return good;
}

// The shard that the last request of each node was served from: the ones before it are mostly full.
static _Atomic unsigned favourite[PM_NODES_MAX];

typedef uint32_t take_fn(struct pm_shard *s, uint64_t pages, uint64_t align_pages, bool grow);

// In the node's shards after the favourite, in turn; where the heap may grow, also in a new one.
__attribute__((noinline)) static uint32_t in_another_shard(take_fn *take_in, unsigned node,
                                                           unsigned tried, uint64_t pages,
                                                           uint64_t align_pages, bool grow) {
    unsigned known = pm_heap.shards;
    for (unsigned done = 1;; done++) {
        if (done >= known && done >= pm_heap.shards &&
            !(grow && another_shard(done, node, pages, align_pages)))
            return 0;
        unsigned n = done < known ? (tried + done) % known : done;
        struct pm_shard *s = &pm_heap.shard[n];
        if (s->node != node)
            continue;
        pm_lock(&s->lock);
        uint32_t index = take_in(s, pages, align_pages, grow);
        pm_unlock(&s->lock);
        if (!index)
            continue;
        atomic_store_explicit(&favourite[node], n, memory_order_relaxed);
        return index;
    }
}

static inline uint32_t in_some_shard(take_fn *take_in, unsigned node, uint64_t pages,
                                     uint64_t align_pages, bool grow) {
    unsigned n = atomic_load_explicit(&favourite[node], memory_order_relaxed);
    struct pm_shard *s = &pm_heap.shard[n];
    uint32_t index = 0;
    if (s->node == node) {
        pm_lock(&s->lock);
        index = take_in(s, pages, align_pages, grow);
        pm_unlock(&s->lock);
    }
    return index ? index : in_another_shard(take_in, node, n, pages, align_pages, grow);
}

void pm_extent_favour(unsigned shard) {
    atomic_store_explicit(&favourite[pm_heap.shard[shard].node], shard, memory_order_relaxed);
}

uint32_t pm_extent_take_on(unsigned node, uint64_t pages, uint64_t align_pages, bool grow) {
    return in_some_shard(take_locked, node, pages, align_pages, grow);
}

uint32_t pm_extent_take_bare_on(unsigned node, uint64_t pages, uint64_t align_pages, bool grow) {
    return in_some_shard(take_bare_locked, node, pages, align_pages, grow);
}

static bool publish_locked(struct pm_shard *s, uint32_t index, bool slab) {
    struct pm_extent *e = &pm_extents[index];
    e->slab = slab;
    s->extents->active.slab_pages += slab ? e->pages : 0;
    bool good = pm_extent_log(s, e);
    if (!good)
        pm_extent_free(s, index);
    else if (!slab)
        pm_extent_set_tag(e);
    return good;
}

bool pm_extent_publish(uint32_t index, bool slab) {
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_lock(&s->lock);
    bool good = publish_locked(s, index, slab);
    pm_unlock(&s->lock);
    return good;
}

void pm_extent_untake(uint32_t index) {
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_lock(&s->lock);
    pm_extent_free(s, index);
    pm_unlock(&s->lock);
}

static uint32_t allocate_locked(struct pm_shard *s, uint64_t pages, uint64_t align_pages,
                                bool grow) {
    uint32_t index = take_locked(s, pages, align_pages, grow);
    return index && publish_locked(s, index, false) ? index : 0;
}

uint32_t pm_extent_allocate_on(unsigned node, uint64_t pages, uint64_t align_pages, bool grow) {
    return in_some_shard(allocate_locked, node, pages, align_pages, grow);
}

static void release_locked(struct pm_shard *s, uint32_t index) {
    pm_extent_unlog(s, &pm_extents[index]);
    pm_extent_free(s, index);
    pm_extent_decay(s);
}

void pm_extent_release(uint32_t index) {
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_lock(&s->lock);
    release_locked(s, index);
    pm_unlock(&s->lock);
}

// The extents lie in one shard. The ends of all entries are durable before the first of the pages
// is free.
static void release_chain(struct pm_shard *s, uint32_t first) {
    pm_lock(&s->lock);
    pm_extent_unlog_all(s, first);
    for (uint32_t index = first, next; index; index = next) {
        next = pm_extents[index].next;
        pm_extent_free(s, index);
    }
    pm_extent_decay(s);
    pm_unlock(&s->lock);
}

void pm_extent_release_all(uint32_t first) {
    uint32_t chain[PM_SHARDS] = {0};
    for (uint32_t index = first, next; index; index = next) {
        uint32_t *head = &chain[index >> PM_INDEX_SHIFT];
        next = pm_extents[index].next;
        pm_extents[index].next = *head;
        *head = index;
    }
    for (unsigned i = 0; i < PM_SHARDS && first; i++)
        if (chain[i])
            release_chain(&pm_heap.shard[i], chain[i]);
}

void pm_extent_forget(uint32_t index) {
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_log_forget(s, pm_extents[index].log);
    pm_extent_free(s, index);
}

void pm_extent_forgotten(struct pm_shard *s) { pm_log_forgotten(s, pm_extent_entry_moved); }

// Returns the extent of the large block at a granule, 0: there is none. The lock is held.
static uint32_t block_at(uint64_t granule) {
    uint64_t page = granule >> (PM_PAGE_SHIFT - PM_GRANULE_SHIFT);
    unsigned tag = pm_tag[pm_tag_index(granule)];
    uint32_t index = tag == PM_TAG_EXTENT || tag == PM_TAG_KIND ? *pm_page_extent(page) : 0;
    // A small block of a kind has the same tag as a large one.
    bool large = index && !pm_extents[index].slab && pm_extents[index].page == page;
    return large ? index : 0;
}

uint32_t pm_extent_find(const void *p) {
    uint64_t granule = pm_granule(p);
    if (granule >= PM_GRANULES)
        return 0;
    struct pm_shard *s = pm_shard_at(granule << PM_GRANULE_SHIFT);
    pm_lock(&s->lock);
    uint32_t index = block_at(granule);
    pm_unlock(&s->lock);
    return index;
}

// Clears the tag of a block by exchange: the cached path of free takes no lock
// (blocks/extent_cache.h). False: somebody else has.
static bool clear_tag(uint64_t granule, uint32_t index) {
    return __atomic_exchange_n(&pm_tag[pm_tag_index(granule)], PM_TAG_NONE, __ATOMIC_RELAXED) ==
           pm_extent_tag(&pm_extents[index]);
}

static void stand(struct pm_shard *s, uint32_t index) {
    pm_standing_put(s, index);
    pm_extent_decay(s);
}

__attribute__((always_inline)) static inline bool end_block(const void *p, bool stands) {
    uint64_t granule = pm_granule(p);
    if (granule >= PM_GRANULES)
        return false;
    struct pm_shard *s = pm_shard_at(granule << PM_GRANULE_SHIFT);
    pm_lock(&s->lock);
    uint32_t index = block_at(granule);
    bool may = index && (!stands || pm_standing_may(&pm_extents[index]));
    bool cleared = may && clear_tag(granule, index);
    if (cleared)
        (stands ? stand : release_locked)(s, index);
    pm_unlock(&s->lock);
    return cleared;
}

bool pm_extent_free_block(const void *p) { return end_block(p, false); }
bool pm_extent_stand_block(const void *p) { return end_block(p, true); }

void pm_extent_stand(uint32_t index) {
    struct pm_shard *s = pm_shard_of_extent(index);
    pm_lock(&s->lock);
    stand(s, index);
    pm_unlock(&s->lock);
}

// ---- statistics ---------------------------------------------------------------------------------

static void add_stats(struct pm_shard *s, struct pm_extent_stats *stats) {
    const struct pm_shard_extents *x = s->extents;
    pm_lock(&s->lock);
    stats->active += x->active.count;
    stats->active_pages += x->active.pages;
    stats->slab_pages += x->active.slab_pages;
    stats->holes += x->active.holes;
    stats->reclaimed_pages += x->reclaimed.pages;
    stats->retained_pages += x->retained.pages;
    for (uint32_t i = pm_index_first(s); (i = pm_extent_next_active_in(s, i)) != 0;)
        if (pm_extent_is_cached(&pm_extents[i])) {
            stats->cached++;
            stats->cached_pages += pm_extents[i].pages;
        }
    pm_unlock(&s->lock);
}

struct pm_extent_stats pm_extent_stats(void) {
    struct pm_extent_stats stats = {0};
    for (unsigned i = 0; i < pm_heap.shards; i++)
        add_stats(&pm_heap.shard[i], &stats);
    return stats;
}
