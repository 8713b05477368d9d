// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "adopt.h"

#include <signal.h>

#include "base/os.h"
#include "heap.h"

struct pm_old pm_old;
struct pm_lock pm_adopt_lock = PM_LOCK(PM_RANK_ADOPT); // held while an object is cleared

static struct pm_old_range root[PM_ROOT_MAX + PM_SHARDS];
static unsigned root_count;
static sigset_t signals; // the signal mask to restore; belongs to the holder of pm_adopt_lock

static int set_range(struct pm_old_range *range, uintptr_t start, size_t len,
                     struct pm_error *err) {
    range->start = start;
    range->adopted = pm_os_reserve((len + 255) / 256 * sizeof *range->adopted);
    if (!range->adopted)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: no address space to keep account of the locks in %zu bytes; see "
                       "`ulimit -v`, or set PMALLOC_LOCKS=keep to leave them as they are",
                       pm_heap.dir, len);
    atomic_store_explicit(&range->len, len, memory_order_release);
    return PM_OK;
}

int pm_old_heap(uint64_t bytes, struct pm_error *err) {
    return bytes ? set_range(&pm_old.heap, pm_base, bytes, err) : PM_OK;
}

int pm_old_root(uintptr_t start, size_t len, struct pm_error *err) {
    if (root_count == PM_ROOT_MAX + PM_SHARDS)
        return PM_OK; // not reached: the heap has no more roots
    int status = set_range(&root[root_count], start, len, err);
    if (status != PM_OK)
        return status;
    root_count++;
    uintptr_t from = pm_old.roots, to = from + pm_old.roots_len;
    if (from == to || start < from)
        from = start;
    if (start + len > to)
        to = start + len;
    pm_old.roots = from;
    atomic_store_explicit(&pm_old.roots_len, to - from, memory_order_release);
    return PM_OK;
}

// The old range in which the object starts, or NULL.
static struct pm_old_range *range_of(const void *object) {
    uintptr_t at = (uintptr_t)object;
    if (at - pm_old.heap.start < pm_old.heap.len)
        return &pm_old.heap;
    for (unsigned i = 0; i < root_count; i++)
        if (at - root[i].start < root[i].len)
            return &root[i];
    return NULL;
}

bool pm_adopted(const void *object) {
    struct pm_old_range *range = range_of(object);
    return !range || pm_old_bit(range, (uintptr_t)object - range->start);
}

void pm_adopt_fresh(const void *object) {
    struct pm_old_range *range = range_of(object);
    if (!range)
        return;
    size_t offset = (uintptr_t)object - range->start;
    atomic_fetch_or_explicit(&range->adopted[offset / 256], 1ull << offset / 4 % 64,
                             memory_order_release);
}

bool pm_adopt_begin(const void *object) {
    sigset_t all, before;
    sigfillset(&all);
    sigemptyset(&before); // where a sandbox forbids the call, it forbids the next one, too
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pm_lock(&pm_adopt_lock);
    if (!pm_adopted(object)) {
        signals = before;
        return true;
    }
    pm_unlock(&pm_adopt_lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return false;
}

void pm_adopt_end(const void *object) {
    sigset_t before = signals;
    pm_adopt_fresh(object);
    pm_unlock(&pm_adopt_lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
