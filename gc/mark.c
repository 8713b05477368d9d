// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "mark.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "extent.h"
#include "lock.h"
#include "morph.h"
#include "os.h"
#include "recover.h"
#include "slab.h"

// The protocol, as in bdwgc's parallel marker:
//
//   1 Each marker owns a bounded stack of byte ranges that are marked but not scanned.
//   2 Scanning looks at every word; an object whose bit is found clear is marked, then pushed. With one marker
//     the bit is set plainly, with more by fetch-or: whoever sets it pushes, so every object is pushed once.
//   3 A marker that finds others idle gives the older half of its stack to the pool. An empty-handed marker
//     takes from the pool, or sleeps; when all sleep and the pool is empty, marking is done.
//   4 A full stack drops the range and notes its granule. When marking is done, the marked objects of noted
//     granules are scanned again, until none is noted. Marks only grow, so this ends.
//   5 Before a range is scanned it rests a few turns in a ring, its first lines being prefetched.

#ifndef STACK // tests make it small, so that it overflows
#define STACK 32768u
#endif
#define POOL 8192u
#define RING 8u
#define MAX_MARKERS 64u
#define PIECE ((uint64_t)256 << 10) // longer ranges are scanned in pieces, holes left out
#define PROGRESS ((uint64_t)64 << 20)

struct range {
    uint64_t offset, len; // from pm_base
};

struct marker {
    pthread_t thread;
    uint32_t count; // stack[0 .. count)
    uint32_t ring_head, ring_count;
    uint64_t scanned, reported;
    struct pm_written known;
    struct range ring[RING];
    struct range stack[STACK];
};

static struct marker *markers;
static unsigned marker_count;
static bool parallel;
static uint64_t base, frontier; // copies of pm_base and pm_heap.frontier

// Per granule of 64 KiB: 0 nothing allocated, 1 .. PM_CLASSES a slab of that class, MORPHED a slab of two classes,
// else EXTENTS + the first active extent that overlaps it.
#define EXTENTS 64u
#define MORPHED 63u
_Static_assert(PM_CLASSES < MORPHED, "a class of its own");
static uint32_t *granule_index;
static uint8_t *granule_noted; // by overflow
static uint64_t granules;
static _Atomic bool overflowed;

static struct {
    struct pm_lock lock;
    _Atomic uint32_t turn; // futex: rises when ranges arrive or marking is done
    _Atomic uint32_t idle;
    bool done;
    uint32_t count;
    struct range range[POOL];
} pool;

// ---- pushing -----------------------------------------------------------------------------------------

static void push(struct marker *m, uint64_t offset, uint64_t len) {
    if (__builtin_expect(m->count < STACK, 1)) {
        m->stack[m->count++] = (struct range){offset, len};
        return;
    }
    // Relaxed: read only after all markers have stopped.
    __atomic_store_n(&granule_noted[offset >> PM_SLAB_SHIFT], 1, __ATOMIC_RELAXED);
    atomic_store_explicit(&overflowed, true, memory_order_relaxed);
}

// True when the caller is the one who marked it.
static bool set_bit(uint64_t *word, uint64_t bit) {
    if (__atomic_load_n(word, __ATOMIC_RELAXED) & bit)
        return false;
    if (!parallel) {
        *word |= bit;
        return true;
    }
    // Relaxed: the bit carries no data; what it guards, the heap, is not being written.
    return !(__atomic_fetch_or(word, bit, __ATOMIC_RELAXED) & bit);
}

static bool set_extent_mark(struct pm_extent *e) {
    return !__atomic_load_n(&e->marked, __ATOMIC_RELAXED) &&
           !__atomic_exchange_n(&e->marked, 1, __ATOMIC_RELAXED);
}

// Marks of old blocks are bits of the slab's live set; see morph.h.
static void consider_morphed(struct marker *m, uint64_t offset) {
    struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    struct pm_morph_block block;
    if (!pm_morph_find(v, (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &block))
        return;
    uint64_t *marks = block.old ? pm_morph_live(v) : v->free;
    if (!set_bit(&marks[block.index / 64], 1ull << block.index % 64))
        return;
    uint32_t size = pm_classes[block.cls].size;
    push(m, (offset & ~(uint64_t)(PM_SLAB_SIZE - 1)) + (uint64_t)block.index * size, size);
}

static void consider_extent(struct marker *m, uint64_t offset, uint32_t index) {
    uint64_t page = offset >> PM_PAGE_SHIFT;
    // At most a few extents overlap a granule; free ones between them are stepped over.
    while (index) {
        struct pm_extent *e = &pm_extents[index];
        if (page < e->page)
            return;
        if (page < e->page + e->pages) {
            if (e->state == PM_EXTENT_ACTIVE && !e->slab && set_extent_mark(e))
                push(m, e->page << PM_PAGE_SHIFT, pm_extent_bytes(e));
            return;
        }
        uint64_t next = e->page + e->pages;
        index = next << PM_PAGE_SHIFT < frontier ? pm_page_extent[next] : 0;
    }
}

__attribute__((noinline)) static void consider_other(struct marker *m, uint64_t offset,
                                                     uint32_t kind) {
    if (kind == MORPHED)
        consider_morphed(m, offset);
    else
        consider_extent(m, offset, kind - EXTENTS);
}

static inline void consider(struct marker *m, uint64_t word) {
    uint64_t offset = word - base;
    if (offset >= frontier)
        return;
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT), kind = granule_index[slab];
    if (kind - 1 >= PM_CLASSES) {
        if (kind)
            consider_other(m, offset, kind);
        return;
    }
    const struct pm_class *cls = &pm_classes[kind];
    uint32_t index = (uint32_t)((offset & (PM_SLAB_SIZE - 1)) * cls->reciprocal >> 32);
    if (index < cls->blocks && set_bit(&pm_vslabs[slab].free[index / 64], 1ull << index % 64))
        push(m, ((uint64_t)slab << PM_SLAB_SHIFT) + (uint64_t)index * cls->size, cls->size);
}

// Stray words are rarely looked for, so for one object at a time and apart from what marking does with it.
static struct {
    bool on, done;
    uint64_t start[2], len[2];
    _Atomic uint64_t words[2];
} watch;

__attribute__((noinline, cold)) static void count_watched(const uint64_t *word,
                                                          const uint64_t *end) {
    uint64_t found[2] = {0, 0};
    for (; word < end; word++)
        for (unsigned i = 0; i < 2; i++)
            found[i] += __atomic_load_n(word, __ATOMIC_RELAXED) - watch.start[i] < watch.len[i];
    for (unsigned i = 0; i < 2; i++)
        if (found[i])
            atomic_fetch_add_explicit(&watch.words[i], found[i], memory_order_relaxed);
}

void pm_mark_watch(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len) {
    watch.start[0] = a, watch.len[0] = a_len;
    watch.start[1] = b, watch.len[1] = b_len;
    watch.on = true;
}

bool pm_mark_watched(uint64_t words[2]) {
    for (unsigned i = 0; i < 2; i++)
        words[i] = atomic_load_explicit(&watch.words[i], memory_order_relaxed);
    return watch.done;
}

static void scan_words(struct marker *m, const void *bytes, uint64_t len) {
    const uint64_t *word = bytes, *end = word + len / sizeof *word;
    if (__builtin_expect(watch.on, 0))
        count_watched(word, end);
    for (; word < end; word++)
        consider(m, __atomic_load_n(word, __ATOMIC_RELAXED));
    m->scanned += len;
}

// A long range: skips what was never written (a hole would be filled by reading it), scans one piece and
// pushes the rest.
static void scan_piece(struct marker *m, uint64_t offset, uint64_t len) {
    uint64_t end = offset + len;
    uint64_t data_len = pm_heap_next_data(&m->known, &offset, end);
    if (data_len == 0)
        return;
    uint64_t piece = data_len < PIECE ? data_len : PIECE;
    if (offset + piece < end)
        push(m, offset + piece, end - offset - piece);
    scan_words(m, pm_heap_at(offset), piece);
}

static void scan(struct marker *m, struct range r) {
    if (r.len > PIECE)
        scan_piece(m, r.offset, r.len);
    else
        scan_words(m, pm_heap_at(r.offset), r.len);
}

// ---- sharing -----------------------------------------------------------------------------------------

static void wake_idle(void) {
    atomic_fetch_add_explicit(&pool.turn, 1, memory_order_relaxed);
    pm_futex_wake(&pool.turn, (int)MAX_MARKERS);
}

static void donate(struct marker *m) {
    pm_lock(&pool.lock, PM_RANK_RUNTIME);
    uint32_t give = m->count / 2, room = POOL - pool.count;
    give = give < room ? give : room;
    memcpy(pool.range + pool.count, m->stack, give * sizeof *m->stack);
    memmove(m->stack, m->stack + give, (m->count - give) * sizeof *m->stack);
    pool.count += give;
    m->count -= give;
    pm_unlock(&pool.lock, PM_RANK_RUNTIME);
    wake_idle();
}

// Work from the pool; false when there is none left anywhere.
static bool take_shared(struct marker *m) {
    pm_lock(&pool.lock, PM_RANK_RUNTIME);
    while (pool.count == 0 && !pool.done) {
        // A sleeper counts as idle until it holds the lock again. Counting it idle although work was
        // donated meanwhile is harmless: then the pool is not empty, which is looked at first.
        if (atomic_fetch_add_explicit(&pool.idle, 1, memory_order_relaxed) + 1 == marker_count) {
            pool.done = true;
            wake_idle();
            break;
        }
        uint32_t turn = atomic_load_explicit(&pool.turn, memory_order_relaxed);
        pm_unlock(&pool.lock, PM_RANK_RUNTIME);
        pm_futex_wait(&pool.turn, turn);
        pm_lock(&pool.lock, PM_RANK_RUNTIME);
        if (!pool.done)
            atomic_fetch_sub_explicit(&pool.idle, 1, memory_order_relaxed);
    }
    uint32_t get = pool.count < STACK / 4 ? pool.count : STACK / 4;
    pool.count -= get;
    memcpy(m->stack, pool.range + pool.count, get * sizeof *m->stack);
    m->count = get;
    pm_unlock(&pool.lock, PM_RANK_RUNTIME);
    return get > 0;
}

// ---- the loop ----------------------------------------------------------------------------------------

static void report(struct marker *m) {
    m->reported = m->scanned;
    if (pm_recover_progress && m == &markers[0])
        pm_recover_progress("mark", m->scanned * marker_count, frontier);
}

static void prefetch(uint64_t offset) {
    const char *p = pm_heap_at(offset);
    __builtin_prefetch(p);
    __builtin_prefetch(p + 64);
}

// Scans until the own stack and ring are empty.
static void drain(struct marker *m) {
    for (;;) {
        while (m->count && m->ring_count < RING) {
            struct range r = m->stack[--m->count];
            prefetch(r.offset);
            m->ring[(m->ring_head + m->ring_count++) % RING] = r;
        }
        if (m->ring_count == 0)
            return;
        struct range r = m->ring[m->ring_head];
        m->ring_head = (m->ring_head + 1) % RING;
        m->ring_count--;
        scan(m, r);
        if (parallel && m->count > 32 && atomic_load_explicit(&pool.idle, memory_order_relaxed))
            donate(m);
        if (m->scanned - m->reported > PROGRESS)
            report(m);
    }
}

static void *run_marker(void *arg) {
    struct marker *m = arg;
    do
        drain(m);
    while (take_shared(m));
    return NULL;
}

static void run_all(void) {
    pool.done = false;
    pool.count = 0;
    atomic_store_explicit(&pool.idle, 0, memory_order_relaxed);
    unsigned wanted = marker_count, started = 1;
    for (; started < wanted; started++)
        if (pthread_create(&markers[started].thread, NULL, run_marker, &markers[started]) != 0)
            break;
    if (started < wanted) { // fewer threads than asked for: those missing count as idle for good
        pm_lock(&pool.lock, PM_RANK_RUNTIME);
        atomic_fetch_add_explicit(&pool.idle, wanted - started, memory_order_relaxed);
        pm_unlock(&pool.lock, PM_RANK_RUNTIME);
    }
    run_marker(&markers[0]);
    for (unsigned i = 1; i < started; i++)
        pthread_join(markers[i].thread, NULL);
}

// ---- overflow ----------------------------------------------------------------------------------------

static void rescan_slab(struct marker *m, uint32_t slab, unsigned cls, const uint64_t *marks) {
    uint64_t start = (uint64_t)slab << PM_SLAB_SHIFT;
    for (unsigned i = 0; i < pm_classes[cls].blocks; i++)
        if (marks[i / 64] >> i % 64 & 1)
            scan_words(m, pm_heap_at(start + (uint64_t)i * pm_classes[cls].size),
                       pm_classes[cls].size);
}

// Noted ranges of an extent may be pieces of it: the whole extent is scanned again, from the granule on.
static void rescan_extents(struct marker *m, uint64_t granule, uint32_t index) {
    uint64_t from = granule << PM_SLAB_SHIFT, to = from + PM_SLAB_SIZE;
    while (index) {
        const struct pm_extent *e = &pm_extents[index];
        uint64_t start = e->page << PM_PAGE_SHIFT, end = start + pm_extent_bytes(e);
        if (start >= to)
            return;
        if (e->state == PM_EXTENT_ACTIVE && !e->slab && e->marked && end > from) {
            uint64_t at = start > from ? start : from;
            for (uint64_t len; at < end && (len = pm_heap_next_data(&m->known, &at, end)) != 0;
                 at += len)
                scan_words(m, pm_heap_at(at), len);
        }
        index = end < frontier ? pm_page_extent[end >> PM_PAGE_SHIFT] : 0;
    }
}

static void rescan(struct marker *m) {
    for (uint64_t g = 0; g < granules; g++) {
        if (!granule_noted[g])
            continue;
        granule_noted[g] = 0;
        uint32_t kind = granule_index[g];
        const struct pm_vslab *v = &pm_vslabs[g];
        if (kind - 1 < PM_CLASSES)
            rescan_slab(m, (uint32_t)g, kind, v->free);
        else if (kind == MORPHED) {
            rescan_slab(m, (uint32_t)g, v->size_class, v->free);
            rescan_slab(m, (uint32_t)g, v->old_class, pm_morph_live(v));
        } else if (kind)
            rescan_extents(m, g, kind - EXTENTS);
        drain(m);
    }
}

// ---- begin, run, end ---------------------------------------------------------------------------------

static void index_extent(uint32_t i) {
    const struct pm_extent *e = &pm_extents[i];
    uint64_t first = e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT;
    uint64_t last = (e->page + e->pages - 1) << PM_PAGE_SHIFT >> PM_SLAB_SHIFT;
    if (e->slab) {
        struct pm_vslab *v = &pm_vslabs[first];
        granule_index[first] = v->old_class ? MORPHED : v->size_class;
        memset(v->free, 0, pm_slab_words(v->size_class) * sizeof v->free[0]);
        if (v->old_class)
            memset(pm_morph_live(v), 0, pm_slab_words(v->old_class) * sizeof v->free[0]);
        return;
    }
    for (uint64_t g = first; g <= last; g++) {
        uint32_t old = granule_index[g];
        if (!old || pm_extents[old - EXTENTS].page > e->page)
            granule_index[g] = EXTENTS + i;
    }
}

int pm_mark_begin(unsigned wanted, struct pm_error *err) {
    base = pm_base;
    frontier = pm_heap.frontier;
    granules = frontier >> PM_SLAB_SHIFT;
    if (frontier & (PM_SLAB_SIZE - 1))
        granules++;
    marker_count = wanted ? wanted : pm_os_cores();
    if (marker_count > MAX_MARKERS)
        marker_count = MAX_MARKERS;
    parallel = marker_count > 1;
    overflowed = false;
    markers = pm_os_reserve(marker_count * sizeof *markers);
    granule_index = pm_os_reserve(granules * sizeof *granule_index + 1);
    granule_noted = pm_os_reserve(granules + 1);
    if (!markers || !granule_index || !granule_noted)
        return pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", strerror(errno));
    for (uint32_t i = 1; i < pm_extent_top; i++)
        if (pm_extents[i].state == PM_EXTENT_ACTIVE)
            index_extent(i);
    return PM_OK;
}

void pm_mark_root(const void *bytes, uint64_t len, bool restored, void *unused) {
    (void)unused;
    // Roots may start at any byte; pointers in them are aligned words.
    uint64_t skip = -(uint64_t)(uintptr_t)bytes & 7;
    bool watched = watch.on;
    watch.on = watched && restored;
    if (len > skip)
        scan_words(&markers[0], (const char *)bytes + skip, len - skip);
    watch.on = watched;
}

uint64_t pm_mark_run(void) {
    uint64_t overflows = 0;
    run_all();
    watch.done = watch.on;
    watch.on = false; // what is scanned again has been counted
    parallel = false; // the others are gone: nobody would take what rescanning gives to the pool
    while (atomic_exchange_explicit(&overflowed, false, memory_order_relaxed)) {
        overflows++;
        rescan(&markers[0]);
    }
    return overflows;
}

void pm_mark_end(void) {
    munmap(markers, marker_count * sizeof *markers);
    munmap(granule_index, granules * sizeof *granule_index + 1);
    munmap(granule_noted, granules + 1);
    markers = NULL;
}
