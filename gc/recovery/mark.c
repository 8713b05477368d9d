// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "mark.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/lock.h"
#include "base/nodes.h"
#include "base/os.h"
#include "blocks/holes.h"
#include "blocks/population.h"
#include "media/heap_space.h"
#include "pages/extent.h"
#include "workers.h"

// The protocol. bdwgc's parallel marker works in the same way:
//
//   1 Each marker owns a bounded stack of byte ranges that are marked but not scanned.
//   2 Scanning looks at every word. If it points to an object whose bit is clear, the bit is set
//     and the object is pushed. One marker alone sets the bit with a plain store. Several markers
//     use fetch-or; the one that sets the bit pushes, so every object is pushed once.
//   3 A marker that sees idle ones gives the older half of its stack to the pool. A marker without
//     work takes from the pool, or sleeps. When all are idle and the pool is empty, marking ends.
//   4 If a stack is full, the range is dropped and its stripe is noted. At the end, the marked
//     objects of noted stripes are scanned again, until no stripe is noted. Marks are only ever
//     set, so this ends.
//   5 A range waits in a ring for a few turns before it is scanned, while its first lines are
//     prefetched.
//
// Memory order: everything is relaxed. The heap's data is not being written, so a mark orders
// nothing. What markers give each other passes through the pool under its lock. What they leave at
// the end (noted stripes, counts) is read after they have been joined.

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
    struct pm_worker worker;
    uint32_t count; // stack[0 .. count)
    uint32_t ring_head, ring_count;
    uint64_t scanned, reported;
    struct pm_written known;
    struct range ring[RING];
    struct range stack[STACK];
};

static struct marker *markers;
static unsigned marker_count;
static bool parallel, held_only;
static pm_progress *progress;
static uint64_t base, frontier; // copies of pm_base and of the end of the last shard

// For each stripe what lies in it. 0: nothing allocated. 1 .. PM_CLASSES: a slab of that class.
// MIXED: a slab of two populations, or of a kind. Else EXTENTS + the first active extent that
// overlaps the stripe.
#define EXTENTS 64u
#define MIXED 63u
_Static_assert(PM_CLASSES < MIXED, "a class of its own");
static uint32_t *stripe_index;
static uint8_t *stripe_noted; // 1: a range that begins in this stripe was dropped
static uint64_t stripes;
static _Atomic bool overflowed;

static struct {
    struct pm_lock lock;
    _Atomic uint32_t turn; // a futex; rises when ranges arrive or marking is done
    _Atomic uint32_t idle; // markers without work; changed under the lock
    bool done;
    uint32_t count;
    struct range range[POOL];
} pool = {.lock = PM_LOCK(PM_RANK_PROCESS)};

// ---- pushing ------------------------------------------------------------------------------------

static void push(struct marker *m, uint64_t offset, uint64_t len) {
    if (__builtin_expect(m->count < STACK, 1)) {
        m->stack[m->count++] = (struct range){offset, len};
        return;
    }
    __atomic_store_n(&stripe_noted[offset >> PM_SLAB_SHIFT], 1, __ATOMIC_RELAXED);
    atomic_store_explicit(&overflowed, true, memory_order_relaxed);
}

// Sets a mark. Returns whether this call set it.
static bool set_bit(uint64_t *word, uint64_t bit) {
    if (__atomic_load_n(word, __ATOMIC_RELAXED) & bit)
        return false;
    if (!parallel) {
        *word |= bit;
        return true;
    }
    return !(__atomic_fetch_or(word, bit, __ATOMIC_RELAXED) & bit);
}

static bool set_extent_mark(struct pm_extent *e) {
    return !__atomic_load_n(&e->marked, __ATOMIC_RELAXED) &&
           !__atomic_exchange_n(&e->marked, 1, __ATOMIC_RELAXED);
}

static void consider_mixed(struct marker *m, uint64_t offset) {
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    struct pm_slab_block block;
    if (!pm_slab_find(v, (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &block) ||
        !set_bit(&block.bits[block.index / 64], 1ull << block.index % 64) ||
        v->kind == PM_KIND_POINTER_FREE)
        return;
    uint32_t size = pm_classes[block.cls].size;
    push(m, (offset & ~(uint64_t)(PM_SLAB_SIZE - 1)) + (uint64_t)block.index * size, size);
}

static void consider_extent(struct marker *m, uint64_t offset, uint32_t index) {
    uint64_t page = offset >> PM_PAGE_SHIFT;
    // `index` is the first extent of the stripe. Go on from there, also over free extents.
    while (index) {
        struct pm_extent *e = &pm_extents[index];
        if (page < e->page)
            return;
        if (page < e->page + e->pages) {
            if (e->state == PM_EXTENT_ACTIVE && !e->slab && (!held_only || e->held) &&
                set_extent_mark(e) && e->kind != PM_KIND_POINTER_FREE)
                push(m, e->page << PM_PAGE_SHIFT, pm_extent_bytes(e));
            return;
        }
        uint64_t next = e->page + e->pages;
        index = next << PM_PAGE_SHIFT < frontier ? pm_page_extent[next] : 0;
    }
}

__attribute__((noinline)) static void consider_other(struct marker *m, uint64_t offset,
                                                     uint32_t kind) {
    if (kind == MIXED)
        consider_mixed(m, offset);
    else
        consider_extent(m, offset, kind - EXTENTS);
}

static inline void consider(struct marker *m, uint64_t word) {
    uint64_t offset = word - base;
    if (offset >= frontier)
        return;
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT), kind = stripe_index[slab];
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

// Stray words are counted rarely. So counting goes over each object once more, before marking does,
// and marking is not slowed down.
static struct pm_stray *stray; // NULL: nothing is counted

__attribute__((noinline, cold)) static void count_stray(const uint64_t *word, const uint64_t *end) {
    uint64_t found[2] = {0, 0};
    for (; word < end; word++)
        for (unsigned i = 0; i < 2; i++)
            found[i] += __atomic_load_n(word, __ATOMIC_RELAXED) - stray->start[i] < stray->len[i];
    for (unsigned i = 0; i < 2; i++)
        if (found[i])
            __atomic_fetch_add(&stray->words[i], found[i], __ATOMIC_RELAXED);
}

static void scan_words(struct marker *m, const void *bytes, uint64_t len) {
    const uint64_t *word = bytes, *end = word + len / sizeof *word;
    if (__builtin_expect(stray != NULL, 0))
        count_stray(word, end);
    for (; word < end; word++)
        consider(m, __atomic_load_n(word, __ATOMIC_RELAXED));
    m->scanned += len;
}

// Scans the first piece of a long range and pushes the rest. Skips what was never written, because
// reading a hole would fill it with memory.
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

// Scans a block in a slab with holes, page by page, and does not read the holes.
__attribute__((noinline)) static void scan_pages(struct marker *m, struct range r, uint16_t holes) {
    for (uint64_t at = r.offset, end = r.offset + r.len, to; at < end; at = to) {
        to = (at | (PM_PAGE_SIZE - 1)) + 1;
        to = to < end ? to : end;
        if (!(holes >> ((at & (PM_SLAB_SIZE - 1)) >> PM_PAGE_SHIFT) & 1))
            scan_words(m, pm_heap_at(at), to - at);
    }
}

// The holes of the slab that a range lies in.
static uint16_t holes_around(struct range r) {
    uint32_t slab = (uint32_t)(r.offset >> PM_SLAB_SHIFT), kind = stripe_index[slab];
    return kind - 1 < MIXED ? pm_vslabs[slab].holes : 0;
}

static void scan(struct marker *m, struct range r) {
    uint16_t holes;
    if (r.len > PIECE)
        scan_piece(m, r.offset, r.len);
    else if (pm_holes_found && r.len >= PM_HOLES_FROM && (holes = holes_around(r)) != 0)
        scan_pages(m, r, holes);
    else
        scan_words(m, pm_heap_at(r.offset), r.len);
}

// ---- sharing ------------------------------------------------------------------------------------

static void wake_idle(void) {
    atomic_fetch_add_explicit(&pool.turn, 1, memory_order_relaxed);
    pm_futex_wake(&pool.turn, (int)MAX_MARKERS);
}

static void donate(struct marker *m) {
    pm_lock(&pool.lock);
    uint32_t give = m->count / 2, room = POOL - pool.count;
    give = give < room ? give : room;
    memcpy(pool.range + pool.count, m->stack, give * sizeof *m->stack);
    memmove(m->stack, m->stack + give, (m->count - give) * sizeof *m->stack);
    pool.count += give;
    m->count -= give;
    pm_unlock(&pool.lock);
    wake_idle();
}

// Takes work from the pool, or waits for some. False: marking is done.
static bool take_shared(struct marker *m) {
    pm_lock(&pool.lock);
    while (pool.count == 0 && !pool.done) {
        // This marker counts as idle until it has woken and holds the lock again, although it may
        // have been given work by then. That is harmless: a marker ends marking only after it has
        // found the pool empty.
        if (atomic_fetch_add_explicit(&pool.idle, 1, memory_order_relaxed) + 1 == marker_count) {
            pool.done = true;
            wake_idle();
            break;
        }
        uint32_t turn = atomic_load_explicit(&pool.turn, memory_order_relaxed);
        pm_unlock(&pool.lock);
        pm_futex_wait(&pool.turn, turn);
        pm_lock(&pool.lock);
        if (!pool.done)
            atomic_fetch_sub_explicit(&pool.idle, 1, memory_order_relaxed);
    }
    uint32_t get = pool.count < STACK / 4 ? pool.count : STACK / 4;
    pool.count -= get;
    memcpy(m->stack, pool.range + pool.count, get * sizeof *m->stack);
    m->count = get;
    pm_unlock(&pool.lock);
    return get > 0;
}

// ---- the loop -----------------------------------------------------------------------------------

static void report(struct marker *m) {
    m->reported = m->scanned;
    if (progress && m == &markers[0])
        progress("mark", m->scanned * marker_count, frontier);
}

static void prefetch(uint64_t offset) {
    const char *p = pm_heap_at(offset);
    __builtin_prefetch(p);
    __builtin_prefetch(p + 64);
}

// Scans until the marker's stack and ring are empty.
static void work_off(struct marker *m) {
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
    if (m != markers) // that one is the program's thread
        pm_node_stay((unsigned)(m - markers));
    do
        work_off(m);
    while (take_shared(m));
    return NULL;
}

static void run_all(void) {
    pool.done = false;
    pool.count = 0;
    atomic_store_explicit(&pool.idle, 0, memory_order_relaxed);
    unsigned wanted = marker_count, started = 1;
    while (started < wanted &&
           pm_worker_start(&markers[started].worker, run_marker, &markers[started]))
        started++;
    if (started < wanted) { // the threads that could not be started count as idle until the end
        pm_lock(&pool.lock);
        atomic_fetch_add_explicit(&pool.idle, wanted - started, memory_order_relaxed);
        pm_unlock(&pool.lock);
    }
    run_marker(&markers[0]);
    for (unsigned i = 1; i < started; i++)
        pm_worker_join(&markers[i].worker);
}

// ---- overflow -----------------------------------------------------------------------------------

static void rescan_population(struct marker *m, uint64_t slab, const struct pm_population *p) {
    uint32_t size = pm_classes[p->cls].size;
    for (unsigned i = 0; i < pm_classes[p->cls].blocks; i++)
        if (pm_bit(p->bits, i))
            scan(m, (struct range){slab + (uint64_t)i * size, size});
}

static void rescan_slab(struct marker *m, uint32_t slab) {
    struct pm_population population[2];
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    for (unsigned i = 0; i < count && pm_vslabs[slab].kind != PM_KIND_POINTER_FREE; i++)
        rescan_population(m, (uint64_t)slab << PM_SLAB_SHIFT, &population[i]);
}

// The dropped range may be a piece of an extent that reaches to its end. So the extent is scanned
// again from this stripe to its end.
static void rescan_extents(struct marker *m, uint64_t stripe, uint32_t index) {
    uint64_t from = stripe << PM_SLAB_SHIFT, to = from + PM_SLAB_SIZE;
    while (index) {
        const struct pm_extent *e = &pm_extents[index];
        uint64_t start = e->page << PM_PAGE_SHIFT, end = start + pm_extent_bytes(e);
        if (start >= to)
            return;
        if (e->state == PM_EXTENT_ACTIVE && !e->slab && e->marked && end > from &&
            e->kind != PM_KIND_POINTER_FREE) {
            uint64_t at = start > from ? start : from;
            for (uint64_t len; at < end && (len = pm_heap_next_data(&m->known, &at, end)) != 0;
                 at += len)
                scan_words(m, pm_heap_at(at), len);
        }
        index = end < frontier ? pm_page_extent[end >> PM_PAGE_SHIFT] : 0;
    }
}

static void rescan(struct marker *m) {
    for (uint64_t stripe = 0; stripe < stripes; stripe++) {
        if (!stripe_noted[stripe])
            continue;
        stripe_noted[stripe] = 0;
        uint32_t kind = stripe_index[stripe];
        if (kind >= EXTENTS)
            rescan_extents(m, stripe, kind - EXTENTS);
        else if (kind)
            rescan_slab(m, (uint32_t)stripe);
        work_off(m);
    }
}

// ---- begin, run, end ----------------------------------------------------------------------------

static void index_slab(uint32_t slab) {
    struct pm_population population[2];
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    stripe_index[slab] = count == 1 && !pm_vslabs[slab].kind ? population[0].cls : MIXED;
    for (unsigned i = 0; i < count; i++)
        memset(population[i].bits, 0, pm_slab_words(population[i].cls) * sizeof(uint64_t));
}

static void index_extent(uint32_t i) {
    const struct pm_extent *e = &pm_extents[i];
    uint64_t first = e->page << PM_PAGE_SHIFT >> PM_SLAB_SHIFT;
    uint64_t last = (e->page + e->pages - 1) << PM_PAGE_SHIFT >> PM_SLAB_SHIFT;
    for (uint64_t stripe = first; stripe <= last; stripe++) {
        uint32_t old = stripe_index[stripe];
        if (!old || pm_extents[old - EXTENTS].page > e->page)
            stripe_index[stripe] = EXTENTS + i;
    }
}

int pm_mark_begin(const struct pm_mark_options *options, struct pm_error *err) {
    base = pm_base;
    frontier = pm_shard_end(&pm_heap.shard[pm_heap.shards - 1]) << PM_PAGE_SHIFT;
    stripes = frontier >> PM_SLAB_SHIFT;
    if (frontier & (PM_SLAB_SIZE - 1))
        stripes++;
    stray = options->stray;
    progress = options->progress;
    marker_count = options->markers ? options->markers : pm_nodes_cores();
    if (marker_count > MAX_MARKERS)
        marker_count = MAX_MARKERS;
    parallel = marker_count > 1;
    held_only = options->held;
    atomic_store_explicit(&pool.idle, 0, memory_order_relaxed); // pm_mark_block() gives nothing
    overflowed = false;
    markers = pm_os_reserve(marker_count * sizeof *markers);
    stripe_index = pm_os_reserve(stripes * sizeof *stripe_index + 1);
    stripe_noted = pm_os_reserve(stripes + 1);
    if (!markers || !stripe_index || !stripe_noted)
        return pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(errno));
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (!pm_extents[i].slab)
            index_extent(i);
        else if (!held_only || pm_vslabs[pm_extent_slab(&pm_extents[i])].held)
            index_slab(pm_extent_slab(&pm_extents[i]));
    return PM_OK;
}

void pm_mark_root(const void *bytes, uint64_t len, bool restored, void *unused) {
    (void)unused;
    // A root may start at any byte. Pointers in it are aligned words.
    uint64_t skip = -(uint64_t)(uintptr_t)bytes & 7;
    struct pm_stray *counted = stray;
    if (!restored)
        stray = NULL;
    if (len > skip)
        scan_words(&markers[0], (const char *)bytes + skip, len - skip);
    stray = counted;
}

void pm_mark_block(const void *block, uint64_t len) {
    push(&markers[0], pm_heap_offset(block), len);
    work_off(&markers[0]);
}

uint64_t pm_mark_run(void) {
    uint64_t overflows = 0;
    run_all();
    if (stray)
        stray->counted = true;
    stray = NULL;     // what is scanned again has been counted already
    parallel = false; // the other markers have ended
    while (atomic_exchange_explicit(&overflowed, false, memory_order_relaxed)) {
        overflows++;
        rescan(&markers[0]);
    }
    return overflows;
}

void pm_mark_end(void) {
    munmap(markers, marker_count * sizeof *markers);
    munmap(stripe_index, stripes * sizeof *stripe_index + 1);
    munmap(stripe_noted, stripes + 1);
    markers = NULL;
}
