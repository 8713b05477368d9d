// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "marks.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/own_memory.h"
#include "heap.h"

#define MOST 65536u // the kernel allows as many mappings

struct pm_lock pm_marks_lock = PM_LOCK(PM_RANK_MARKS);
_Atomic uint32_t pm_marks_count;

static struct pm_mark *mark; // by rising address; they do not overlap
static uint32_t count, most;

static void set_count(uint32_t now) {
    count = now;
    atomic_store_explicit(&pm_marks_count, now, memory_order_relaxed);
}

// The first one that ends after `at`.
static uint32_t find(uint64_t at) {
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (mark[middle].to <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(uint32_t i, struct pm_mark new) {
    memmove(&mark[i + 1], &mark[i], (count - i) * sizeof *mark);
    mark[i] = new;
    set_count(count + 1);
}

// No mark goes on beyond `at` from before it.
static void split(uint64_t at) {
    uint32_t i = find(at);
    if (i == count || mark[i].from >= at)
        return;
    struct pm_mark first = mark[i];
    first.to = at;
    mark[i].from = at;
    insert(i, first);
}

static void change_one(struct pm_mark *m, unsigned add, unsigned remove, int access) {
    m->kinds = (uint16_t)((m->kinds & ~remove) | add);
    if (add & PM_MARK_ACCESS)
        m->access = (uint16_t)access;
    if (!(m->kinds & PM_MARK_ACCESS))
        m->access = 0;
}

// Drops what is no mark any more, and joins what is one.
static void tidy(uint32_t first) {
    uint32_t kept = first;
    for (uint32_t i = first; i < count; i++) {
        struct pm_mark *last = kept ? &mark[kept - 1] : NULL;
        if (!mark[i].kinds)
            continue;
        if (last && last->to == mark[i].from && last->kinds == mark[i].kinds &&
            last->access == mark[i].access)
            last->to = mark[i].to;
        else
            mark[kept++] = mark[i];
    }
    set_count(kept);
}

// Two more by splitting, and one in each gap between others.
static bool has_room(uint64_t from, uint64_t to) {
    if (!mark && (most = (uint32_t)pm_own_room(sizeof *mark, MOST)) > 1)
        mark = pm_own_reserve(most * sizeof *mark);
    return mark && count + 2 + (find(to) - find(from) + 2) <= most;
}

static void change(uint64_t from, uint64_t to, unsigned add, unsigned remove, int access) {
    split(from);
    split(to);
    uint32_t first = find(from);
    uint64_t at = from;
    for (uint32_t i = first; at < to; i++) {
        uint64_t next = i < count && mark[i].from < to ? mark[i].from : to;
        if (at < next)
            insert(i, (struct pm_mark){at, next, 0, 0});
        change_one(&mark[i], add, remove, access);
        at = mark[i].to;
    }
    tidy(first);
}

bool pm_marks_change(uint64_t from, uint64_t to, unsigned add, unsigned remove, int access) {
    if (!add && !pm_marks_any())
        return true;
    pm_lock(&pm_marks_lock);
    bool good = has_room(from, to);
    if (good)
        change(from, to, add, remove, access);
    pm_unlock(&pm_marks_lock);
    return good;
}

bool pm_marks_next(uint64_t at, struct pm_mark *out) {
    if (!pm_marks_any())
        return false;
    pm_lock(&pm_marks_lock);
    uint32_t i = find(at);
    bool found = i < count;
    if (found)
        *out = mark[i];
    pm_unlock(&pm_marks_lock);
    return found;
}

typedef void part_fn(void *at, size_t len, const struct pm_mark *m);

static void each_part(uint64_t from, uint64_t to, part_fn *fn) {
    struct pm_mark m;
    int saved = errno;
    for (uint64_t at = from; at < to && pm_marks_next(at, &m) && m.from < to; at = m.to) {
        m.from = m.from > from ? m.from : from;
        m.to = m.to < to ? m.to : to;
        fn(pm_heap_at(m.from), m.to - m.from, &m);
    }
    errno = saved;
}

static void renew(void *at, size_t len, const struct pm_mark *m) {
    if (m->kinds & PM_MARK_ACCESS)
        mprotect(at, len, m->access);
    if (m->kinds & PM_MARK_NO_DUMP)
        madvise(at, len, MADV_DONTDUMP);
    if (m->kinds & PM_MARK_GUARD)
        madvise(at, len, PM_GUARD_INSTALL);
}

static void lift(void *at, size_t len, const struct pm_mark *m) {
    if (m->kinds & PM_MARK_ACCESS)
        mprotect(at, len, PROT_READ | PROT_WRITE);
}

static void undo(void *at, size_t len, const struct pm_mark *m) {
    lift(at, len, m);
    if (m->kinds & PM_MARK_NO_DUMP)
        madvise(at, len, MADV_DODUMP);
    if (m->kinds & PM_MARK_GUARD)
        madvise(at, len, PM_GUARD_REMOVE);
    if (pm_heap_state() != PM_HEAP_VOLATILE)
        return;
    if (m->kinds & PM_MARK_WIPED)
        madvise(at, len, MADV_KEEPONFORK);
    if (m->kinds & PM_MARK_NO_CHILD)
        madvise(at, len, MADV_DOFORK);
}

void pm_marks_renew(uint64_t from, uint64_t to) { each_part(from, to, renew); }

void pm_marks_lift(uint64_t from, uint64_t to) { each_part(from, to, lift); }

void pm_marks_drop(uint64_t from, uint64_t to) {
    each_part(from, to, undo);
    pm_marks_change(from, to, 0, UINT16_MAX, 0);
}
