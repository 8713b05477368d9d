// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "emptied.h"

#include <sys/mman.h>

#include "file.h"
#include "heap.h"
#include "own_pages.h"

// Two mappings each; the kernel allows 65,530 in all.
#define MOST 2048u

// Changed with this lock, which is taken after extent locks. Ranges do not overlap.
static struct pm_lock lock = PM_LOCK(PM_RANK_EMPTIED);
static struct pm_emptied range[MOST];
static unsigned count;

static uint64_t end_of(const struct pm_emptied *e) { return e->offset + e->len; }

static bool overlap(const struct pm_emptied *e, uint64_t offset, uint64_t len) {
    return e->offset < offset + len && offset < end_of(e);
}

static void remove_at(unsigned i) { range[i] = range[--count]; }

// Makes one range of all that touch [offset, offset + len) in its shard. What lies in them and is
// not stored to reads as zeroes, as all of the new one does, so it may count as fresh, too.
static void merge(uint64_t offset, uint64_t len) {
    uint64_t end = offset + len;
    for (unsigned i = 0; i < count;) {
        const struct pm_emptied *e = &range[i];
        if (e->offset > end || end_of(e) < offset ||
            pm_shard_at(e->offset) != pm_shard_at(offset)) {
            i++;
            continue;
        }
        offset = e->offset < offset ? e->offset : offset;
        end = end_of(e) > end ? end_of(e) : end;
        remove_at(i);
        i = 0;
    }
    range[count++] = (struct pm_emptied){offset, end - offset, .fresh = true};
}

bool pm_emptied_add(uint64_t offset, uint64_t len) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    pm_lock(&lock);
    bool good = count < MOST &&
                mmap(pm_heap_at(offset), len, PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED;
    if (good)
        merge(offset, len);
    pm_unlock(&lock);
    return good;
}

void pm_emptied_take(void (*fn)(const struct pm_emptied *e)) {
    for (unsigned i = 0; i < count; i++) {
        range[i].taken = range[i].fresh;
        if (range[i].fresh)
            fn(&range[i]);
    }
}

static bool map_file(uint64_t offset, uint64_t len) {
    struct pm_shard *s = pm_shard_at(offset);
    return pm_file_ready(&s->data) && mmap(pm_heap_at(offset), len, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, s->data.fd,
                                           (off_t)(offset - s->offset)) != MAP_FAILED;
}

static void cut_out(unsigned i, uint64_t offset, uint64_t len) {
    struct pm_emptied before = range[i], after = range[i];
    before.len = offset - before.offset;
    after.offset = offset + len;
    after.len = end_of(&range[i]) - after.offset;
    remove_at(i);
    if (before.len)
        range[count++] = before;
    if (after.len)
        range[count++] = after;
}

enum pm_emptied_is pm_emptied_map(uint64_t offset, uint64_t len) {
    for (unsigned i = 0; i < count; i++) {
        const struct pm_emptied *e = &range[i];
        if (!overlap(e, offset, len))
            continue;
        bool all = e->offset <= offset && offset + len <= end_of(e);
        if (!all || e->fresh || count == MOST || !map_file(offset, len))
            return PM_EMPTIED_KEPT;
        cut_out(i, offset, len);
        return PM_EMPTIED_MAPPED;
    }
    return PM_EMPTIED_NOT;
}

static void stored(char *at, size_t len, void *arg) {
    (void)at, (void)len;
    *(bool *)arg = true;
}

void pm_emptied_map_idle(void) {
    for (unsigned i = 0; i < count;) {
        const struct pm_emptied *e = &range[i];
        bool used = e->fresh;
        if (!used)
            pm_own_pages(pm_heap_at(e->offset), e->len, stored, &used);
        if (!used && map_file(e->offset, e->len))
            remove_at(i);
        else
            i++;
    }
}

void pm_emptied_forget(void) { count = 0; }

void pm_emptied_taken(bool counts) {
    pm_lock(&lock);
    for (unsigned i = 0; i < count; i++) {
        if (range[i].taken && counts)
            range[i].fresh = false;
        range[i].taken = false;
    }
    pm_unlock(&lock);
}
