// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "extent.h"

#include "decay.h"
#include "options.h"
#include "os.h"

#define MAX_EXTENTS (uint32_t)(pm_range / 16384)
#define LISTS 224     // size lists: exact below 8 pages, then eighths of a doubling
#define CANDIDATES 16 // looked at per list for one that fits alignment
#define REGION_PAGES (PM_REGION_SIZE >> PM_PAGE_SHIFT)
#define CHUNK_PAGES_MIN 16u // of space taken from the file system at once
#define CHUNK_PAGES_MAX 512u

struct pm_extent *pm_extents;
uint32_t pm_extent_top;
struct pm_lock pm_extent_lock;

// Free extents of one state. `some` has a bit for every list that is not empty.
struct free_set {
    uint32_t head[LISTS];
    uint64_t some[(LISTS + 63) / 64];
    uint64_t pages;
};
static struct free_set reclaimed, retained;
static uint32_t oldest, newest; // reclaimed, by time
static uint32_t spare;          // unused headers, through `next`
static uint64_t active_pages, active_count, slab_pages;
static void entry_moved(uint64_t entry, pm_log_pos to);

// ---- headers -----------------------------------------------------------------------------------------

bool pm_extent_init(void) {
    pm_extents = pm_os_reserve(MAX_EXTENTS * sizeof *pm_extents);
    pm_extent_top = 1;
    pm_decay_init(pm_options.decay_ms.number);
    pm_log_moved = entry_moved;
    return pm_extents != NULL;
}

static uint32_t new_header(uint64_t page, uint64_t pages) {
    uint32_t index = spare;
    if (index)
        spare = pm_extents[index].next;
    else if (pm_extent_top < MAX_EXTENTS)
        index = pm_extent_top++;
    else
        return 0;
    pm_extents[index] = (struct pm_extent){.page = page, .pages = (uint32_t)pages};
    return index;
}

static void drop_header(uint32_t index) {
    pm_extents[index].state = PM_EXTENT_UNUSED;
    pm_extents[index].next = spare;
    spare = index;
}

static void set_bounds(const struct pm_extent *e, uint32_t value) {
    pm_page_extent[e->page] = value;
    pm_page_extent[e->page + e->pages - 1] = value;
}

// ---- free sets ---------------------------------------------------------------------------------------

// The list that an extent of `pages` belongs to; its first list whose members all hold `pages`, when
// `pages` is a size that pm_large_pages() gives.
static unsigned list_of(uint64_t pages) {
    if (pages < 8)
        return (unsigned)pages;
    unsigned top = 63u - (unsigned)__builtin_clzll(pages);
    return (top - 2) * 8 + (unsigned)(pages >> (top - 3) & 7);
}

static struct free_set *set_of(const struct pm_extent *e) {
    return e->state == PM_EXTENT_RECLAIMED ? &reclaimed : &retained;
}

static void age_insert(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    e->older = newest;
    e->newer = 0;
    *(newest ? &pm_extents[newest].newer : &oldest) = index;
    newest = index;
}

static void age_remove(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    *(e->older ? &pm_extents[e->older].newer : &oldest) = e->newer;
    *(e->newer ? &pm_extents[e->newer].older : &newest) = e->older;
}

static void free_insert(uint32_t index, enum pm_extent_state state) {
    struct pm_extent *e = &pm_extents[index];
    e->state = (uint8_t)state;
    struct free_set *set = set_of(e);
    unsigned list = list_of(e->pages);
    e->prev = 0;
    e->next = set->head[list];
    if (e->next)
        pm_extents[e->next].prev = index;
    set->head[list] = index;
    set->some[list / 64] |= 1ull << list % 64;
    set->pages += e->pages;
    set_bounds(e, index);
    if (state == PM_EXTENT_RECLAIMED)
        age_insert(index);
}

static void free_remove(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    struct free_set *set = set_of(e);
    unsigned list = list_of(e->pages);
    *(e->prev ? &pm_extents[e->prev].next : &set->head[list]) = e->next;
    if (e->next)
        pm_extents[e->next].prev = e->prev;
    if (!set->head[list])
        set->some[list / 64] &= ~(1ull << list % 64);
    set->pages -= e->pages;
    if (e->state == PM_EXTENT_RECLAIMED)
        age_remove(index);
}

static unsigned next_list(const struct free_set *set, unsigned from) {
    for (unsigned word = from / 64; word < sizeof set->some / sizeof set->some[0]; word++) {
        uint64_t bits = set->some[word];
        if (word == from / 64)
            bits &= ~0ull << from % 64;
        if (bits)
            return word * 64 + (unsigned)__builtin_ctzll(bits);
    }
    return LISTS;
}

// Best fit: the lowest size list with an extent that holds `pages` from an aligned page on.
static uint32_t find_fit(const struct free_set *set, uint64_t pages, uint64_t align) {
    for (unsigned list = list_of(pages); (list = next_list(set, list)) < LISTS; list++) {
        unsigned tries = CANDIDATES;
        for (uint32_t i = set->head[list]; i && tries--; i = pm_extents[i].next) {
            const struct pm_extent *e = &pm_extents[i];
            uint64_t first = (e->page + align - 1) & ~(align - 1);
            if (first + pages <= e->page + e->pages)
                return i;
        }
    }
    return 0;
}

// Inserts a free extent, merged with neighbours of the same state. Returns the merged extent.
static uint32_t coalesce(uint32_t index, enum pm_extent_state state) {
    struct pm_extent *e = &pm_extents[index];
    uint64_t end = e->page + e->pages;
    uint32_t before = e->page ? pm_page_extent[e->page - 1] : 0;
    uint32_t after = end << PM_PAGE_SHIFT < pm_heap.frontier ? pm_page_extent[end] : 0;
    uint32_t sides[2] = {before, after};
    for (unsigned i = 0; i < 2; i++) {
        struct pm_extent *side = &pm_extents[sides[i]];
        // A header cannot count more pages than an entry can.
        if (!sides[i] || side->state != state ||
            (uint64_t)side->pages + e->pages > PM_ENTRY_PAGES_MAX)
            continue;
        free_remove(sides[i]);
        set_bounds(side, 0);
        set_bounds(e, 0);
        if (side->page < e->page)
            e->page = side->page;
        e->pages += side->pages;
        e->backed &= side->backed;
        e->zero &= side->zero;
        drop_header(sides[i]);
    }
    free_insert(index, state);
    return index;
}

// Cuts [page + pages, end) off an extent that is in no list; the tail gets the same flags.
static uint32_t cut_tail(uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t tail = new_header(e->page + pages, e->pages - pages);
    if (!tail)
        return 0;
    pm_extents[tail].backed = e->backed;
    pm_extents[tail].zero = e->zero;
    set_bounds(e, 0);
    e->pages = (uint32_t)pages;
    return tail;
}

// ---- frontier ----------------------------------------------------------------------------------------

// Adds at least `pages` retained pages behind the frontier, in whole regions.
static bool grow(uint64_t pages) {
    uint64_t from = pm_heap.frontier >> PM_PAGE_SHIFT;
    uint64_t to = (from + pages + REGION_PAGES - 1) / REGION_PAGES * REGION_PAGES;
    uint32_t index = new_header(from, to - from);
    if (!index)
        return false;
    if (!pm_heap_set_frontier(to << PM_PAGE_SHIFT)) {
        drop_header(index);
        return false;
    }
    pm_extents[index].zero = 1;
    coalesce(index, PM_EXTENT_RETAINED);
    return true;
}

// A retained extent at the frontier leaves the heap, in whole regions.
static void shrink(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    uint64_t keep = (e->page + REGION_PAGES - 1) / REGION_PAGES * REGION_PAGES;
    uint64_t end = e->page + e->pages;
    if (end << PM_PAGE_SHIFT != pm_heap.frontier || keep >= end)
        return;
    free_remove(index);
    set_bounds(e, 0);
    if (pm_heap_set_frontier(keep << PM_PAGE_SHIFT)) {
        e->pages = (uint32_t)(keep - e->page);
        if (!e->pages) {
            drop_header(index);
            return;
        }
    }
    free_insert(index, PM_EXTENT_RETAINED);
}

static void purge_one(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    if (!pm_heap_uncommit(e->page << PM_PAGE_SHIFT, pm_extent_bytes(e))) {
        age_remove(index); // the file system cannot; do not try it again before the others
        age_insert(index);
        return;
    }
    free_remove(index);
    e->zero = 1;
    e->backed = 0;
    shrink(coalesce(index, PM_EXTENT_RETAINED));
}

// Oldest first; stops where the file system gives nothing back.
static void purge_down_to(uint64_t limit) {
    for (uint64_t before = UINT64_MAX; reclaimed.pages > limit && reclaimed.pages < before;) {
        before = reclaimed.pages;
        purge_one(oldest);
    }
}

static void decay(void) {
    uint64_t limit;
    if (pm_decay_tick(pm_os_now_ms(), reclaimed.pages, &limit))
        purge_down_to(limit);
}

bool pm_extent_purge(bool all) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint64_t before = reclaimed.pages;
    if (all)
        purge_down_to(0);
    else
        decay();
    bool gave = reclaimed.pages < before;
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return gave;
}

// ---- take and release --------------------------------------------------------------------------------

static uint64_t promised_bytes(void) { return (active_pages + reclaimed.pages) << PM_PAGE_SHIFT; }

// Makes sure that touching the first `pages` of an extent cannot fail. Space is taken from the file system in
// steps that grow with the heap; *pages becomes how much is backed now.
static bool back(struct pm_extent *e, uint64_t *pages) {
    uint64_t want = *pages, step = active_pages / 4;
    if (want > PM_HUGE_PAGES) {
        if (pm_options.reserve.number == PM_RESERVE_LAZY)
            return pm_heap_has_room(want << PM_PAGE_SHIFT, promised_bytes());
    } else {
        step = step < CHUNK_PAGES_MIN ? CHUNK_PAGES_MIN : 1ull << (63 - __builtin_clzll(step));
        step = step > CHUNK_PAGES_MAX ? CHUNK_PAGES_MAX : step;
        uint64_t end = (e->page + want + step - 1) & ~(step - 1); // so that huge pages can serve
        want = end - e->page < e->pages ? end - e->page : e->pages;
        if (pm_heap_commit(e->page << PM_PAGE_SHIFT, want << PM_PAGE_SHIFT)) {
            *pages = want;
            return true;
        }
    }
    return pm_heap_commit(e->page << PM_PAGE_SHIFT, *pages << PM_PAGE_SHIFT);
}

// Carves `pages` aligned pages out of the free extent `index` and makes them active.
static uint32_t carve(uint32_t index, uint64_t pages, uint64_t align) {
    struct pm_extent *e = &pm_extents[index];
    enum pm_extent_state state = (enum pm_extent_state)e->state;
    uint64_t first = (e->page + align - 1) & ~(align - 1);
    free_remove(index);
    if (first > e->page) {
        uint32_t rest = cut_tail(index, first - e->page);
        free_insert(index, state);
        if (!rest)
            return 0;
        e = &pm_extents[index = rest];
    }
    uint64_t backed = pages;
    if (!e->backed && !back(e, &backed)) {
        coalesce(index, state);
        return 0;
    }
    bool lazy = !e->backed && pages > PM_HUGE_PAGES && pm_options.reserve.number == PM_RESERVE_LAZY;
    if (e->pages > backed) {
        uint32_t rest = cut_tail(index, backed);
        if (!rest) {
            coalesce(index, state);
            return 0;
        }
        coalesce(rest, state);
    }
    e->backed = !lazy;
    if (e->pages > pages) {
        uint32_t rest = cut_tail(index, pages);
        if (!rest) {
            coalesce(index, PM_EXTENT_RECLAIMED);
            return 0;
        }
        coalesce(rest, PM_EXTENT_RECLAIMED);
    }
    e->state = PM_EXTENT_ACTIVE;
    e->log = PM_LOG_NOWHERE;
    set_bounds(e, index);
    active_pages += pages;
    active_count++;
    return index;
}

// How far the frontier has to move until an aligned piece ends there, what is free before it counted in.
static uint64_t missing(uint64_t pages, uint64_t align) {
    uint64_t from = pm_heap.frontier >> PM_PAGE_SHIFT, to = from;
    const struct pm_extent *last = from ? &pm_extents[pm_page_extent[from - 1]] : NULL;
    if (last && last->state == PM_EXTENT_RETAINED)
        from = last->page;
    uint64_t end = ((from + align - 1) & ~(align - 1)) + pages;
    return end > to ? end - to : 1;
}

static uint32_t take(uint64_t pages, uint64_t align) {
    uint32_t fit = find_fit(&reclaimed, pages, align);
    if (!fit)
        fit = find_fit(&retained, pages, align);
    if (!fit && grow(missing(pages, align)))
        fit = find_fit(&retained, pages, align);
    if (!fit && grow(pages + align - 1)) // the free end was too long to merge with what was added
        fit = find_fit(&retained, pages, align);
    return fit ? carve(fit, pages, align) : 0;
}

uint32_t pm_extent_take(uint64_t pages, uint64_t align_pages) {
    if (pages == 0 || pages > PM_ENTRY_PAGES_MAX || align_pages > PM_ENTRY_PAGES_MAX)
        return 0;
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    decay();
    uint32_t index = take(pages, align_pages);
    if (!index && reclaimed.pages) {
        // At the limit or on a full file system, what is kept for reuse may be what is missing.
        purge_down_to(0);
        index = take(pages, align_pages);
    }
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return index;
}

static void free_extent(uint32_t index) {
    struct pm_extent *e = &pm_extents[index];
    active_pages -= e->pages;
    active_count--;
    if (e->slab)
        slab_pages -= e->pages;
    e->slab = 0;
    e->zero = 0;
    coalesce(index, PM_EXTENT_RECLAIMED);
}

bool pm_extent_publish(uint32_t index, bool slab) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    struct pm_extent *e = &pm_extents[index];
    e->slab = slab;
    slab_pages += slab ? e->pages : 0;
    e->log =
        pm_log_append(pm_entry_make(slab ? PM_ENTRY_SLAB : PM_ENTRY_EXTENT, e->page, e->pages));
    bool good = e->log != PM_LOG_NOWHERE;
    if (!good)
        free_extent(index);
    else if (!slab)
        __atomic_store_n(&pm_tag[e->page << (PM_PAGE_SHIFT - PM_GRANULE_SHIFT)], PM_TAG_EXTENT,
                         __ATOMIC_RELAXED);
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return good;
}

void pm_extent_release(uint32_t index) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    pm_log_end(&pm_extents[index].log);
    free_extent(index);
    decay();
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
}

uint32_t pm_extent_claim(const void *p, bool take_tag) {
    uint64_t granule = pm_granule(p);
    if (granule >= PM_GRANULES)
        return 0;
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint32_t index = 0;
    if (pm_tag[granule] == PM_TAG_EXTENT) {
        index = pm_page_extent[granule >> (PM_PAGE_SHIFT - PM_GRANULE_SHIFT)];
        if (take_tag)
            pm_tag[granule] = PM_TAG_NONE;
    }
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return index;
}

// ---- resize ------------------------------------------------------------------------------------------

// The resize under way: until its old entry is ended, two entries stand for one start.
static struct {
    uint64_t page;
    uint32_t old_pages;
    pm_log_pos old;
} resizing = {.page = UINT64_MAX};

static void entry_moved(uint64_t entry, pm_log_pos to) {
    if (pm_entry_page(entry) == resizing.page && pm_entry_pages(entry) == resizing.old_pages)
        resizing.old = to;
    else
        pm_extents[pm_page_extent[pm_entry_page(entry)]].log = to;
}

// The log learns the new size before it forgets the old one. A crash between leaves two entries for one
// start; replay keeps the longer, and either is right, for the caller has not been answered yet.
static bool relog(struct pm_extent *e, uint32_t old_pages) {
    resizing.page = e->page;
    resizing.old_pages = old_pages;
    resizing.old = e->log;
    pm_log_pos fresh = pm_log_append(pm_entry_make(PM_ENTRY_EXTENT, e->page, e->pages));
    bool good = fresh != PM_LOG_NOWHERE;
    e->log = good ? fresh : resizing.old;
    if (good)
        pm_log_end(&resizing.old);
    resizing.page = UINT64_MAX;
    return good;
}

static bool shrink_active(uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t old = e->pages;
    uint32_t tail = cut_tail(index, pages);
    if (!tail)
        return false;
    set_bounds(e, index);
    if (!relog(e, old)) {
        drop_header(tail);
        set_bounds(e, 0);
        e->pages = old;
        set_bounds(e, index);
        return false;
    }
    active_pages -= pm_extents[tail].pages;
    pm_extents[tail].zero = 0;
    coalesce(tail, PM_EXTENT_RECLAIMED);
    return true;
}

// Takes `more` free pages from `page` on: a free extent, and the one behind it, which has the other state.
// Where both do not suffice and end at the frontier, it moves. False: nothing is held.
static bool annex(uint64_t page, uint64_t more, uint32_t part[2]) {
    part[0] = part[1] = 0;
    for (unsigned i = 0; i < 2 && more; i++) {
        bool end = page << PM_PAGE_SHIFT == pm_heap.frontier;
        uint32_t next = end ? 0 : pm_page_extent[page];
        const struct pm_extent *e = &pm_extents[next];
        if (next && e->state == PM_EXTENT_ACTIVE)
            break;
        bool last = end || (e->page + e->pages) << PM_PAGE_SHIFT == pm_heap.frontier;
        if (last && (end || (e->state == PM_EXTENT_RETAINED && e->pages < more))) {
            if (!grow(end ? more : more - e->pages))
                break;
            next = pm_page_extent[page];
            e = &pm_extents[next];
        }
        uint64_t piece = e->pages < more ? e->pages : more;
        part[i] = carve(next, piece, 1);
        if (!part[i])
            break;
        page += piece;
        more -= piece;
    }
    if (!more)
        return true;
    for (unsigned i = 0; i < 2; i++)
        if (part[i])
            free_extent(part[i]);
    return false;
}

static bool grow_active(uint32_t index, uint64_t pages) {
    struct pm_extent *e = &pm_extents[index];
    uint32_t old = e->pages, part[2];
    if (!annex(e->page + old, pages - old, part))
        return false;
    set_bounds(e, 0);
    for (unsigned i = 0; i < 2; i++)
        if (part[i]) {
            set_bounds(&pm_extents[part[i]], 0);
            active_count--;
        }
    e->pages = (uint32_t)pages;
    set_bounds(e, index);
    bool good = relog(e, old);
    if (!good) {
        set_bounds(e, 0);
        e->pages = old;
        set_bounds(e, index);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (!part[i])
            continue;
        if (good) {
            e->backed &= pm_extents[part[i]].backed;
            drop_header(part[i]);
        } else {
            active_count++;
            free_extent(part[i]);
        }
    }
    return good;
}

bool pm_extent_resize(uint32_t index, uint64_t pages) {
    if (pages == 0 || pages > PM_ENTRY_PAGES_MAX)
        return false;
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    uint32_t have = pm_extents[index].pages;
    bool good =
        pages == have || (pages < have ? shrink_active(index, pages) : grow_active(index, pages));
    decay();
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return good;
}

// ---- statistics --------------------------------------------------------------------------------------

bool pm_extent_each_active(pm_range_fn *fn, void *arg) {
    for (uint32_t i = 1; i < pm_extent_top; i++) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->state == PM_EXTENT_ACTIVE &&
            !fn(e->page << PM_PAGE_SHIFT, (uint64_t)e->pages << PM_PAGE_SHIFT, arg))
            return false;
    }
    return true;
}

struct pm_extent_stats pm_extent_stats(void) {
    pm_lock(&pm_extent_lock, PM_RANK_EXTENT);
    struct pm_extent_stats stats = {active_count, active_pages, slab_pages, reclaimed.pages,
                                    retained.pages};
    pm_unlock(&pm_extent_lock, PM_RANK_EXTENT);
    return stats;
}

// ---- opening -----------------------------------------------------------------------------------------

// The lesser entry of an interrupted resize, to be erased once the heap may be written. The extent lock
// admits one resize at a time, and each opening finishes the one it finds.
static pm_log_pos unfinished = PM_LOG_NOWHERE;

static bool finish_resize(uint32_t index, uint64_t pages, pm_log_pos pos) {
    struct pm_extent *e = &pm_extents[index];
    if (unfinished != PM_LOG_NOWHERE)
        return false;
    if (pages <= e->pages) {
        unfinished = pos;
        return true;
    }
    if (pm_page_extent[e->page + pages - 1])
        return false;
    unfinished = e->log;
    e->log = pos;
    active_pages += pages - e->pages;
    set_bounds(e, 0);
    e->pages = (uint32_t)pages;
    set_bounds(e, index);
    return true;
}

int pm_extent_adopt(uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    uint64_t page = pm_entry_page(entry), pages = pm_entry_pages(entry);
    bool slab = pm_entry_type(entry) == PM_ENTRY_SLAB;
    uint64_t heap_pages = pm_heap.data.size >> PM_PAGE_SHIFT,
             slab_len = PM_SLAB_SIZE / PM_PAGE_SIZE;
    if (pages == 0 || page + pages > heap_pages)
        return pm_fail(
            err, PM_DAMAGE,
            "%s: the log has an extent at page %lu of %lu pages, but heap.0 has only %lu "
            "pages; was it truncated?",
            pm_heap.dir, (unsigned long)page, (unsigned long)pages, (unsigned long)heap_pages);
    if (slab && (page % slab_len || pages != slab_len))
        return pm_fail(err, PM_DAMAGE, "%s: the log has a slab at page %lu of %lu pages",
                       pm_heap.dir, (unsigned long)page, (unsigned long)pages);
    uint32_t twin = pm_page_extent[page];
    if (twin && pm_extents[twin].page == page && !slab && !pm_extents[twin].slab &&
        finish_resize(twin, pages, pos))
        return PM_OK;
    uint32_t index = twin || pm_page_extent[page + pages - 1] ? 0 : new_header(page, pages);
    if (!index)
        return pm_fail(err, PM_DAMAGE, "%s: two extents overlap at page %lu", pm_heap.dir,
                       (unsigned long)page);
    struct pm_extent *e = &pm_extents[index];
    e->state = PM_EXTENT_ACTIVE;
    e->slab = slab;
    e->log = pos;
    set_bounds(e, index);
    active_pages += pages;
    active_count++;
    slab_pages += slab ? pages : 0;
    return PM_OK;
}

// First page at or after `page` that an extent's bounds lie on, or `end`.
static uint64_t next_bound(uint64_t page, uint64_t end) {
    while (page < end && !pm_page_extent[page])
        page++;
    return page;
}

static bool add_gap(uint64_t page, uint64_t pages, bool repair) {
    uint32_t index = new_header(page, pages);
    if (!index)
        return false;
    bool holes = !repair || pm_heap_uncommit(page << PM_PAGE_SHIFT, pages << PM_PAGE_SHIFT);
    pm_extents[index].zero = holes;
    coalesce(index, holes ? PM_EXTENT_RETAINED : PM_EXTENT_RECLAIMED);
    return true;
}

int pm_extent_check(struct pm_error *err) {
    uint64_t end = pm_heap.data.size >> PM_PAGE_SHIFT;
    pm_heap.frontier = pm_heap.data.size;
    for (uint64_t page = next_bound(0, end); page < end; page = next_bound(page, end)) {
        uint32_t index = pm_page_extent[page];
        const struct pm_extent *e = &pm_extents[index];
        uint64_t last = e->page + e->pages - 1;
        bool alone = e->page == page && pm_page_extent[last] == index &&
                     (last == page || next_bound(page + 1, last) == last);
        if (!alone)
            return pm_fail(err, PM_DAMAGE, "%s: two extents overlap near page %lu", pm_heap.dir,
                           (unsigned long)page);
        page = last + 1;
    }
    return PM_OK;
}

int pm_extent_fill_gaps(bool repair, struct pm_error *err) {
    uint64_t end = pm_heap.data.size >> PM_PAGE_SHIFT;
    for (uint64_t page = 0; page < end;) {
        uint32_t index = pm_page_extent[page];
        if (index) {
            page += pm_extents[index].pages;
            continue;
        }
        uint64_t to = next_bound(page, end);
        to = to - page > PM_ENTRY_PAGES_MAX ? page + PM_ENTRY_PAGES_MAX : to;
        if (!add_gap(page, to - page, repair))
            return pm_fail(err, PM_OPERATIONAL, "%s: too many extents", pm_heap.dir);
        page = to;
    }
    if (!repair)
        return PM_OK;
    if (unfinished != PM_LOG_NOWHERE)
        pm_log_erase(unfinished);
    unfinished = PM_LOG_NOWHERE;
    if (end && pm_extents[pm_page_extent[end - 1]].state == PM_EXTENT_RETAINED)
        shrink(pm_page_extent[end - 1]);
    return PM_OK;
}
