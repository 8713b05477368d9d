// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A crew of markers: who scans what, and when everything is scanned. It knows ranges of bytes and
// nothing else. The crew's leader knows what a mark is, and what a range has: recovery/mark (bits
// of slabs), live/trace (bytes of collectable blocks), live/live_mark (tags). bdwgc's parallel
// marker works in the same way:
//
//   1 Each marker owns a bounded stack of ranges that are marked but not scanned.
//   2 The leader's `scan` looks at a range. What it marks there it pushes.
//   3 A marker that sees idle ones gives the older half of its stack to the pool, or a long range.
//     A marker without work takes from the pool, or sleeps. When all are idle and the pool is
//     empty, marking ends.
//   4 If a stack is full, a push fails. The leader gives from the stack to the pool (pm_crew_give),
//     or notes what it must scan again.
//   5 A range waits in a ring for a few turns before it is scanned, while its first lines are
//     prefetched.
//
// Memory order: everything is relaxed. The data that is scanned is not being written, so a mark
// orders nothing. Ranges that markers give each other pass through the pool under its lock. What
// they leave at the end (notes, counts) is read after they have been joined.
#ifndef PM_CREW_H
#define PM_CREW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "media/backing/backing.h"

#define PM_CREW_RING 8u
#define PM_CREW_FRESH 16u
#define PM_CREW_MAX 64u                  // markers
#define PM_CREW_LONG ((uint64_t)1 << 16) // a range of at least this number of bytes is given alone
#define PM_CREW_KEEP 32u                 // a shorter stack is not shared

struct pm_range {
    uint64_t offset, len; // the leader's: an offset is from where it reads
};

struct pm_crew;
struct pm_marker {
    struct pm_crew *crew;
    struct pm_range *stack;
    uint32_t count; // stack[0 .. count)
    uint32_t ring_head, ring_count;
    uint64_t scanned;        // bytes; counted by `scan`
    uint64_t pause_at;       // it pauses when it has scanned this much
    struct pm_written known; // for `scan`, of files with holes
    // For `scan`: what was found last, and waits for its mark to come from memory. Round; len 0:
    // nothing.
    uint32_t oldest;
    struct pm_range fresh[PM_CREW_FRESH];
    struct pm_range ring[PM_CREW_RING];
} __attribute__((aligned(64)));

struct pm_crew {
    // The leader's. `work` is pm_crew_work_off() with its `scan`. `start` lets a thread run
    // pm_crew_follow() with this number, 1 or more; false: there is none. `join` waits for its end.
    void (*work)(struct pm_marker *m);
    bool (*start)(unsigned number);
    void (*join)(unsigned number);

    struct pm_marker *marker;
    unsigned markers;
    uint32_t room; // of each stack
    bool parallel; // several markers run

    // The pool.
    struct pm_lock lock;
    _Atomic uint32_t turn; // a futex; rises when ranges arrive or marking is done
    _Atomic uint32_t idle; // markers without work; changed under the lock
    bool done;
    uint32_t pool_room, pooled, most_pooled;
    struct pm_range *pool;
};

// Memory for a crew, all zeroes at first; the leader's.
size_t pm_crew_bytes(unsigned markers, uint32_t room, uint32_t pool_room);
void pm_crew_make(struct pm_crew *c, void *memory, unsigned markers, uint32_t room,
                  uint32_t pool_room);
// Scans everything that is pushed. The caller is the first marker.
void pm_crew_run(struct pm_crew *c);
// What other threads run.
void pm_crew_follow(struct pm_crew *c, unsigned number);
// Moves the older half of the marker's stack to the pool, as far as there is room. False: there is
// none.
bool pm_crew_give(struct pm_marker *m);

// False: the stack is full.
static inline bool pm_crew_push(struct pm_marker *m, uint64_t offset, uint64_t len) {
    if (__builtin_expect(m->count == m->crew->room, 0))
        return false;
    m->stack[m->count++] = (struct pm_range){offset, len};
    return true;
}

static inline bool pm_crew_has_work(const struct pm_marker *m) { return m->count || m->ring_count; }

static inline bool pm_crew_can_share(const struct pm_marker *m) {
    return m->crew->parallel &&
           (m->count > PM_CREW_KEEP || (m->count && m->stack[0].len >= PM_CREW_LONG)) &&
           atomic_load_explicit(&m->crew->idle, memory_order_relaxed);
}

// Takes a range from the stack. It waits in the ring, unless it is the only one, as in a list: then
// there is nothing to do meanwhile.
static inline bool pm_crew_next(struct pm_marker *m, const char *bytes, struct pm_range *r) {
    if (m->ring_count == 0 && m->count == 1) {
        *r = m->stack[--m->count];
        return true;
    }
    while (m->count && m->ring_count < PM_CREW_RING) {
        struct pm_range waits = m->stack[--m->count];
        __builtin_prefetch(bytes + waits.offset);
        if ((waits.offset & 63) + waits.len > 64) // each prefetch may wait for the TLB
            __builtin_prefetch(bytes + waits.offset + 64);
        m->ring[(m->ring_head + m->ring_count++) % PM_CREW_RING] = waits;
    }
    if (m->ring_count == 0)
        return false;
    *r = m->ring[m->ring_head++ % PM_CREW_RING];
    m->ring_count--;
    return true;
}

// Scans until the marker's stack and ring are empty, or until it is to rest. `bytes`: where offset
// 0 is read. While `scan` runs, the stack has room for one range at least: the one that was scanned
// last, or this one, has left it.
typedef void pm_scan_fn(struct pm_marker *m, struct pm_range r);
__attribute__((always_inline)) static inline void
pm_crew_work_off(struct pm_marker *m, const char *bytes, pm_scan_fn *scan) {
    struct pm_range r;
    while (m->scanned < m->pause_at && pm_crew_next(m, bytes, &r)) {
        scan(m, r);
        if (__builtin_expect(pm_crew_can_share(m), 0))
            pm_crew_give(m);
    }
}

#endif
