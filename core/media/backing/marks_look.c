// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Marks, and what the kernel says. A program may change its pages by system calls of its own, which
// nobody sees.
#include <errno.h>
#include <sys/mman.h>

#include "base/mappings.h"
#include "marks.h"
#include "media/heap.h"

// ---- what was not seen --------------------------------------------------------------------------

static uint64_t looked; // where the last mapping has ended, from pm_base

static void note_hole(uint64_t to) {
    uint64_t at = looked, part;
    for (; (part = pm_marks_free_of(PM_MARK_AWAY, &at, to)) != 0; at += part)
        pm_marks_change(at, at + part, PM_MARK_HOLE, 0, 0);
}

static void note_access(uint64_t from, uint64_t to, int access) {
    const int plain = PROT_READ | PROT_WRITE;
    struct pm_mark m = {0};
    bool known = pm_marks_next(from, &m) && m.from < to;
    bool same = known && m.from <= from && m.to >= to && m.kinds & PM_MARK_ACCESS &&
                (m.access & ~PM_KEY_STAYS) == access;
    if (!same && (known || access != plain))
        pm_marks_change(from, to, PM_MARK_ACCESS, 0, access | PM_KEY_STAYS);
}

static void note(uint64_t from, uint64_t to, int access, void *unused) {
    (void)unused;
    from -= pm_base;
    to -= pm_base;
    note_hole(from);
    note_access(from, to, access);
    looked = to;
}

void pm_marks_look(void) {
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        uint64_t end = s->offset + s->frontier;
        looked = s->offset;
        if (s->frontier && pm_mappings_each(pm_base + s->offset, pm_base + end, note, NULL))
            note_hole(end);
    }
}

// ---- open to all readers ------------------------------------------------------------------------

static bool open_now;

// Holes and guards get a page of zeroes.
static void open_part(const struct pm_mark *m) {
    char *at = pm_heap_at(m->from);
    uint64_t len = m->to - m->from;
    if (m->kinds & PM_MARK_HOLE)
        mmap(at, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (m->kinds & PM_MARK_GUARD)
        madvise(at, len, PM_GUARD_REMOVE);
    if (m->access >> PM_KEY_SHIFT)
        pm_marks_lift(m->from, m->to);
    else if (m->kinds & PM_MARK_ACCESS && !(m->access & PROT_READ))
        mprotect(at, len, PROT_READ);
}

static void close_part(const struct pm_mark *m) {
    char *at = pm_heap_at(m->from);
    uint64_t len = m->to - m->from;
    if (m->kinds & PM_MARK_HOLE)
        munmap(at, len);
    if (m->kinds & PM_MARK_GUARD)
        madvise(at, len, PM_GUARD_INSTALL);
    if (m->access >> PM_KEY_SHIFT)
        pm_marks_renew(m->from, m->to);
    else if (m->kinds & PM_MARK_ACCESS && !(m->access & PROT_READ))
        mprotect(at, len, m->access);
}

static void each(void (*fn)(const struct pm_mark *m)) {
    struct pm_mark m;
    int saved = errno;
    for (uint64_t at = 0; pm_marks_next(at, &m); at = m.to)
        fn(&m);
    errno = saved;
}

void pm_marks_open(void) {
    pm_marks_look();
    each(open_part);
    open_now = true;
}

void pm_marks_close(void) {
    if (open_now)
        each(close_part);
    open_now = false;
}
