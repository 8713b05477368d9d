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
#include "mark_index.h"
#include "media/heap_space.h"
#include "media/snapshot.h"
#include "pages/extent.h"
#include "words.h"
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
    uint64_t pause_at; // it rests when it has scanned so much (pm_mark_some)
    struct pm_written known;
    struct range ring[RING];
    struct range stack[STACK];
};

static struct marker *markers;
static unsigned marker_count;
static bool parallel;
static pm_progress *progress;
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
    __atomic_store_n(&pm_marks.noted[offset >> PM_SLAB_SHIFT], 1, __ATOMIC_RELAXED);
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

static bool set_large_mark(struct pm_large *l) {
    return !__atomic_load_n(&l->marked, __ATOMIC_RELAXED) &&
           !__atomic_exchange_n(&l->marked, 1, __ATOMIC_RELAXED);
}

static void consider_mixed(struct marker *m, uint64_t offset) {
    const struct pm_vslab *v = &pm_vslabs[offset >> PM_SLAB_SHIFT];
    struct pm_slab_block block;
    if (!pm_slab_find(v, (uint32_t)(offset & (PM_SLAB_SIZE - 1)), &block) ||
        !set_bit(&block.bits[block.index / 64], 1ull << block.index % 64) ||
        !pm_kind_has_pointers(v->kind))
        return;
    uint32_t size = pm_classes[block.cls].size;
    push(m, (offset & ~(uint64_t)(PM_SLAB_SIZE - 1)) + (uint64_t)block.index * size, size);
}

// `number` is the first large block of the stripe. Others may follow.
static void consider_large(struct marker *m, uint64_t offset, uint32_t number) {
    uint64_t page = offset >> PM_PAGE_SHIFT;
    for (; number < pm_marks.larges; number++) {
        struct pm_large *l = &pm_marks.large[number];
        if (page < l->page)
            return;
        if (page >= l->page + l->pages)
            continue;
        if (!l->pinned && set_large_mark(l) && !l->pointer_free)
            push(m, l->page << PM_PAGE_SHIFT, (uint64_t)l->pages << PM_PAGE_SHIFT);
        return;
    }
}

__attribute__((noinline)) static void consider_other(struct marker *m, uint64_t offset,
                                                     uint32_t kind) {
    if (kind == PM_STRIPE_MIXED)
        consider_mixed(m, offset);
    else if (kind != PM_STRIPE_PINNED) // what is pinned is marked, or free
        consider_large(m, offset, kind - PM_STRIPE_LARGE);
}

static inline void consider(struct marker *m, uint64_t word) {
    uint64_t offset = word - pm_marks.base;
    if (offset >= pm_marks.frontier)
        return;
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT), kind = pm_marks.kind[slab];
    if (kind - 1 >= PM_CLASSES) {
        if (kind)
            consider_other(m, offset, kind);
        return;
    }
    const struct pm_class *cls = &pm_classes[kind];
    uint32_t index = (uint32_t)((offset & (PM_SLAB_SIZE - 1)) * cls->reciprocal >> 32);
    if (index < cls->blocks && set_bit(&pm_mark_bits(slab, kind)[index / 64], 1ull << index % 64))
        push(m, ((uint64_t)slab << PM_SLAB_SHIFT) + (uint64_t)index * cls->size, cls->size);
}

// Stray words are counted rarely. So counting goes over each object once more, before marking does,
// and marking is not slowed down.
static struct pm_stray *stray; // NULL: nothing is counted

static void scan_words(struct marker *m, const void *bytes, uint64_t len) {
    const uint64_t *word = bytes, *end = word + len / sizeof *word;
    const struct pm_high_halves high = pm_marks.high;
    if (__builtin_expect(stray != NULL, 0))
        pm_words_count_stray(stray, word, end);
    for (; end - word >= 4; word += 4)
        for (unsigned near = pm_words_near(word, high); near; near &= near - 1)
            consider(m, word[__builtin_ctz(near)]);
    for (; word < end; word++)
        consider(m, *word);
    m->scanned += len;
}

static inline const char *at_offset(uint64_t offset) { return pm_marks.bytes + offset; }

static uint64_t next_data(struct marker *m, uint64_t *offset, uint64_t end) {
    return pm_marks.beside ? pm_snapshot_next_data(&m->known, offset, end)
                           : pm_heap_next_data(&m->known, offset, end);
}

// Scans the first piece of a long range and pushes the rest. Skips what was never written, because
// reading a hole would fill it with memory.
static void scan_piece(struct marker *m, uint64_t offset, uint64_t len) {
    uint64_t end = offset + len;
    uint64_t data_len = next_data(m, &offset, end);
    if (data_len == 0)
        return;
    uint64_t piece = data_len < PIECE ? data_len : PIECE;
    if (offset + piece < end)
        push(m, offset + piece, end - offset - piece);
    scan_words(m, at_offset(offset), piece);
}

// Scans a block in a slab with holes, page by page, and does not read the holes.
__attribute__((noinline)) static void scan_pages(struct marker *m, struct range r, uint16_t holes) {
    for (uint64_t at = r.offset, end = r.offset + r.len, to; at < end; at = to) {
        to = (at | (PM_PAGE_SIZE - 1)) + 1;
        to = to < end ? to : end;
        if (!(holes >> ((at & (PM_SLAB_SIZE - 1)) >> PM_PAGE_SHIFT) & 1))
            scan_words(m, at_offset(at), to - at);
    }
}

// The holes of the slab that a range lies in.
static uint16_t holes_around(struct range r) {
    uint32_t slab = (uint32_t)(r.offset >> PM_SLAB_SHIFT), kind = pm_marks.kind[slab];
    return kind - 1 < PM_STRIPE_MIXED ? pm_mark_holes(slab) : 0;
}

static void scan(struct marker *m, struct range r);

static void scan_population(struct marker *m, uint32_t slab, unsigned cls, const uint64_t *bits) {
    uint32_t size = pm_classes[cls].size;
    for (unsigned i = 0; i < pm_classes[cls].blocks; i++)
        if (pm_bit(bits, i))
            scan(m, (struct range){((uint64_t)slab << PM_SLAB_SHIFT) + (uint64_t)i * size, size});
}

// All pinned blocks of a slab are one range.
static void scan_pinned(struct marker *m, uint64_t offset) {
    uint32_t slab = (uint32_t)(offset >> PM_SLAB_SHIFT), cls = pm_vslabs[slab].size_class;
    scan_population(m, slab, cls, pm_mark_bits(slab, cls));
}

static void scan(struct marker *m, struct range r) {
    uint16_t holes;
    if (r.len > PIECE)
        scan_piece(m, r.offset, r.len);
    else if (r.len == PM_SLAB_SIZE && pm_marks.kind[r.offset >> PM_SLAB_SHIFT] == PM_STRIPE_PINNED)
        scan_pinned(m, r.offset);
    else if (pm_holes_found && r.len >= PM_HOLES_FROM && (holes = holes_around(r)) != 0)
        scan_pages(m, r, holes);
    else
        scan_words(m, at_offset(r.offset), r.len);
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
        progress("mark", m->scanned * marker_count, pm_marks.frontier);
}

// Takes a range from the stack. It waits in the ring, unless it is the only one, as in a list: then
// there is nothing to do meanwhile.
static bool next_range(struct marker *m, struct range *r) {
    if (m->ring_count == 0 && m->count == 1) {
        *r = m->stack[--m->count];
        return true;
    }
    while (m->count && m->ring_count < RING) {
        struct range waits = m->stack[--m->count];
        __builtin_prefetch(at_offset(waits.offset));
        __builtin_prefetch(at_offset(waits.offset + 64));
        m->ring[(m->ring_head + m->ring_count++) % RING] = waits;
    }
    if (m->ring_count == 0)
        return false;
    *r = m->ring[m->ring_head++ % RING];
    m->ring_count--;
    return true;
}

// Scans until the marker's stack and ring are empty, or until it is to rest.
static void work_off(struct marker *m) {
    struct range r;
    while (m->scanned < m->pause_at && next_range(m, &r)) {
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

static void rescan_mixed(struct marker *m, uint32_t slab) {
    struct pm_population population[2];
    unsigned count = pm_slab_populations(&pm_vslabs[slab], population);
    for (unsigned i = 0; i < count && pm_kind_has_pointers(pm_vslabs[slab].kind); i++)
        scan_population(m, slab, population[i].cls, population[i].bits);
}

// The dropped range may be a piece of a block that reaches to its end. So the block is scanned
// again from this stripe to its end.
static void rescan_large(struct marker *m, uint64_t stripe, uint32_t number) {
    uint64_t from = stripe << PM_SLAB_SHIFT, to = from + PM_SLAB_SIZE;
    for (; number < pm_marks.larges; number++) {
        const struct pm_large *l = &pm_marks.large[number];
        uint64_t start = l->page << PM_PAGE_SHIFT, end = (l->page + l->pages) << PM_PAGE_SHIFT;
        if (start >= to)
            return;
        uint64_t at = start > from ? start : from;
        for (uint64_t len;
             l->marked && !l->pointer_free && at < end && (len = next_data(m, &at, end)) != 0;
             at += len)
            scan_words(m, at_offset(at), len);
    }
}

static uint64_t next_noted; // no stripe before it is noted, but those that were noted since

// Scans the marked objects of the next noted stripe. False: there is none.
static bool rescan(struct marker *m) {
    while (next_noted < pm_marks.stripes && !pm_marks.noted[next_noted])
        next_noted++;
    if (next_noted >= pm_marks.stripes)
        return false;
    uint64_t stripe = next_noted++;
    pm_marks.noted[stripe] = 0;
    uint32_t slab = (uint32_t)stripe, kind = pm_marks.kind[stripe];
    if (kind >= PM_STRIPE_LARGE)
        rescan_large(m, stripe, kind - PM_STRIPE_LARGE);
    else if (kind == PM_STRIPE_MIXED)
        rescan_mixed(m, slab);
    else if (kind == PM_STRIPE_PINNED)
        scan_pinned(m, stripe << PM_SLAB_SHIFT);
    else if (kind)
        scan_population(m, slab, kind, pm_mark_bits(slab, kind));
    return true;
}

// ---- begin, run, end ----------------------------------------------------------------------------

// Pinned blocks are roots. Beside the program their slabs may soon be others, so they are scanned
// now, before the program runs, and then count as nothing.
static void push_pinned_slab(struct marker *m, uint32_t slab) {
    if (pm_marks.kind[slab] == PM_STRIPE_PINNED && !pm_marks.beside) {
        push(m, (uint64_t)slab << PM_SLAB_SHIFT, PM_SLAB_SIZE);
    } else if (pm_marks.kind[slab] == PM_STRIPE_PINNED) {
        scan_pinned(m, (uint64_t)slab << PM_SLAB_SHIFT);
        pm_marks.kind[slab] = 0;
    }
}

static void push_pinned(void) {
    struct marker *m = &markers[0];
    if (!(pm_heap.super->super.incompat & PM_INCOMPAT_PINNED))
        return;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extents[i].slab)
            push_pinned_slab(m, pm_extent_slab(&pm_extents[i]));
    for (uint32_t i = 0; i < pm_marks.larges; i++) {
        const struct pm_large *l = &pm_marks.large[i];
        if (l->pinned && l->marked && !l->pointer_free)
            push(m, l->page << PM_PAGE_SHIFT, (uint64_t)l->pages << PM_PAGE_SHIFT);
    }
}

int pm_mark_begin(const struct pm_mark_options *options, struct pm_error *err) {
    stray = options->stray;
    progress = options->progress;
    marker_count = options->beside ? 1 : options->markers ? options->markers : pm_nodes_cores();
    if (marker_count > MAX_MARKERS)
        marker_count = MAX_MARKERS;
    parallel = marker_count > 1;
    atomic_store_explicit(&pool.idle, 0, memory_order_relaxed); // pm_mark_block() gives nothing
    overflowed = false;
    markers = pm_os_reserve(marker_count * sizeof *markers);
    if (!markers)
        return pm_fail(err, PM_OPERATIONAL, "no memory to mark with: %s", pm_strerror(errno));
    for (unsigned i = 0; i < marker_count; i++)
        markers[i].pause_at = UINT64_MAX;
    next_noted = UINT64_MAX;
    int status = pm_mark_index_make(options->beside, options->held, err);
    if (status == PM_OK)
        push_pinned();
    return status;
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
        for (next_noted = 0; rescan(&markers[0]);)
            work_off(&markers[0]);
    }
    return overflows;
}

bool pm_mark_some(uint64_t bytes) {
    struct marker *m = &markers[0];
    m->pause_at = m->scanned + bytes;
    while (m->scanned < m->pause_at) {
        work_off(m);
        if (m->count || m->ring_count || rescan(m))
            continue;
        if (!atomic_exchange_explicit(&overflowed, false, memory_order_relaxed))
            return false;
        next_noted = 0;
    }
    return true;
}

void pm_mark_end(void) {
    if (!pm_marks.beside)
        pm_mark_index_publish();
    munmap(markers, marker_count * sizeof *markers);
    markers = NULL;
    pm_mark_index_drop();
}
