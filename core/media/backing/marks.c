// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "marks.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/own_memory.h"
#include "file.h"
#include "media/heap.h"

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
    if ((access & PM_KEY_STAYS) == PM_KEY_STAYS)
        access = (access & ~PM_KEY_STAYS) | (m->access & PM_KEY_STAYS);
    m->kinds = (uint16_t)((m->kinds & ~remove) | add);
    if (add & PM_MARK_ACCESS)
        m->access = (uint16_t)access;
    if (m->access == (PROT_READ | PROT_WRITE))
        m->kinds &= (uint16_t)~PM_MARK_ACCESS;
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

bool pm_marks_next_locked(uint64_t at, struct pm_mark *out) {
    uint32_t i = find(at);
    if (i < count)
        *out = mark[i];
    return i < count;
}

bool pm_marks_next(uint64_t at, struct pm_mark *out) {
    if (!pm_marks_any())
        return false;
    pm_lock(&pm_marks_lock);
    bool found = pm_marks_next_locked(at, out);
    pm_unlock(&pm_marks_lock);
    return found;
}

uint64_t pm_marks_free_of_locked(unsigned kinds, uint64_t *at, uint64_t to) {
    for (uint32_t i = find(*at); i < count && mark[i].from < to; i++) {
        if (!(mark[i].kinds & kinds))
            continue;
        if (mark[i].from > *at)
            return mark[i].from - *at;
        *at = mark[i].to;
    }
    return *at < to ? to - *at : 0;
}

uint64_t pm_marks_free_of(unsigned kinds, uint64_t *at, uint64_t to) {
    if (!pm_marks_any())
        return *at < to ? to - *at : 0;
    pm_lock(&pm_marks_lock);
    uint64_t len = pm_marks_free_of_locked(kinds, at, to);
    pm_unlock(&pm_marks_lock);
    return len;
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

static void set_access(void *at, size_t len, const struct pm_mark *m) {
    int access = m->access & ~PM_KEY_STAYS, key = m->access >> PM_KEY_SHIFT;
    if (!(m->kinds & PM_MARK_ACCESS))
        return;
    if (!key || syscall(SYS_pkey_mprotect, at, len, access, key) != 0)
        mprotect(at, len, access);
}

static void renew(void *at, size_t len, const struct pm_mark *m) {
    if (m->kinds & PM_MARK_AWAY)
        return;
    set_access(at, len, m);
    if (m->kinds & PM_MARK_NO_DUMP)
        madvise(at, len, MADV_DONTDUMP);
    if (m->kinds & PM_MARK_GUARD)
        madvise(at, len, PM_GUARD_INSTALL);
}

static void lift(void *at, size_t len, const struct pm_mark *m) {
    struct pm_mark plain = {.kinds = m->kinds, .access = PROT_READ | PROT_WRITE};
    if (m->kinds & PM_MARK_AWAY)
        return;
    if (m->access >> PM_KEY_SHIFT)
        syscall(SYS_pkey_mprotect, at, len, plain.access, 0);
    else
        set_access(at, len, &plain);
}

// Maps the heap again where the program has mapped something else, or nothing.
static void map_again(uint64_t offset, uint64_t len) {
    const int prot = PROT_READ | PROT_WRITE, flags = MAP_FIXED | MAP_NORESERVE;
    struct pm_shard *s = pm_shard_at(offset);
    void *at = pm_heap_at(offset);
    bool good = !pm_heap_on_media()
                    ? mmap(at, len, prot, flags | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED
                    : pm_file_ready(&s->data) && pm_file_map(&s->data, at, len, prot, flags,
                                                             offset - s->offset) != MAP_FAILED;
    if (!good)
        pm_abort(PM_EV_BLOCK_MAPPED_OVER,
                 "a block at %p was freed over which the program had mapped something else, and "
                 "the heap cannot be mapped there again: %s; unmap nothing of a block",
                 at, pm_strerror(errno));
}

static void undo(void *at, size_t len, const struct pm_mark *m) {
    if (m->kinds & PM_MARK_AWAY) {
        map_again(pm_heap_offset(at), len);
        return;
    }
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
