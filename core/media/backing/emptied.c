// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "emptied.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "file.h"
#include "marks.h"
#include "media/heap.h"
#include "media/own_pages.h"
#include "work_copy.h"

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

static void cut_out(unsigned i, uint64_t offset, uint64_t len) {
    struct pm_emptied before = range[i], after = range[i];
    before.len = offset > before.offset ? offset - before.offset : 0;
    after.offset = offset + len;
    after.len = end_of(&range[i]) > after.offset ? end_of(&range[i]) - after.offset : 0;
    remove_at(i);
    if (before.len)
        range[count++] = before;
    if (after.len)
        range[count++] = after;
}

// Cuts a piece out of all ranges. One of them at most has a part before it and a part after it.
static void cut_out_all(uint64_t offset, uint64_t len) {
    for (unsigned i = 0; i < count;)
        if (overlap(&range[i], offset, len)) {
            cut_out(i, offset, len);
            i = 0;
        } else {
            i++;
        }
}

// Joins the last range with those that touch it. Where they are not stored to they read as zeroes,
// too, so all of it may be fresh.
static void join_last(void) {
    struct pm_emptied e = range[--count];
    for (unsigned i = 0; i < count;) {
        const struct pm_emptied *other = &range[i];
        bool touches = other->offset == end_of(&e) || end_of(other) == e.offset;
        if (!touches || other->used || pm_shard_at(other->offset) != pm_shard_at(e.offset)) {
            i++;
            continue;
        }
        e.offset = other->offset < e.offset ? other->offset : e.offset;
        e.len += other->len;
        remove_at(i);
        i = 0;
    }
    range[count++] = e;
}

static bool replace(const struct pm_emptied *e) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
    void *at = pm_heap_at(e->offset);
    if (count + 2 >= MOST || mmap(at, e->len, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED)
        return false;
    cut_out_all(e->offset, e->len);
    range[count++] = *e;
    return true;
}

bool pm_emptied_add(uint64_t offset, uint64_t len) {
    pm_lock(&lock);
    bool good = replace(&(struct pm_emptied){offset, len, .fresh = true});
    if (good)
        join_last();
    pm_unlock(&lock);
    return good;
}

bool pm_emptied_promise(uint64_t offset, uint64_t len) {
    pm_lock(&lock);
    bool good =
        replace(&(struct pm_emptied){offset, len, .fresh = true, .used = true, .promised = true});
    pm_unlock(&lock);
    return good;
}

static void use_part(unsigned i, uint64_t offset, uint64_t end) {
    struct pm_emptied part = range[i];
    part.offset = offset > part.offset ? offset : part.offset;
    part.len = (end < end_of(&range[i]) ? end : end_of(&range[i])) - part.offset;
    part.used = true;
    cut_out(i, part.offset, part.len);
    range[count++] = part;
}

bool pm_emptied_use(uint64_t offset, uint64_t len) {
    pm_lock(&lock);
    bool good = true;
    for (unsigned i = 0; i < count && good;) {
        if (range[i].used || !overlap(&range[i], offset, len)) {
            i++;
            continue;
        }
        good = count + 2 < MOST;
        if (good)
            use_part(i, offset, offset + len);
        i = 0;
    }
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

static bool has_space(int fd, uint64_t at, uint64_t len) {
    return syscall(SYS_fallocate, fd, 0, at, len) == 0 || errno == EOPNOTSUPP || errno == EPERM;
}

// A commit may have made holes in a range that was allocated again meanwhile. On tmpfs a store to a
// hole needs space, also in a private mapping, and without it there is a SIGBUS. A fixed medium has
// all its space.
static bool map_file(const struct pm_emptied *e, uint64_t offset, uint64_t len) {
    struct pm_shard *s = pm_shard_at(offset);
    bool good = pm_file_ready(&s->data) && pm_work_fd(&s->data) >= 0 &&
                (!e->used || s->data.length || has_space(s->data.fd, offset - s->offset, len)) &&
                mmap(pm_heap_at(offset), len, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pm_work_fd(&s->data),
                     (off_t)pm_work_offset(&s->data, offset - s->offset)) != MAP_FAILED;
    if (good)
        pm_marks_renew(offset, offset + len);
    return good;
}

uint64_t pm_emptied_piece(uint64_t offset, uint64_t len) {
    uint64_t end = offset + len;
    for (unsigned i = 0; i < count; i++) {
        if (range[i].offset > offset && range[i].offset < end)
            end = range[i].offset;
        if (end_of(&range[i]) > offset && end_of(&range[i]) < end)
            end = end_of(&range[i]);
    }
    return end - offset;
}

enum pm_emptied_is pm_emptied_map(uint64_t offset, uint64_t len) {
    for (unsigned i = 0; i < count; i++) {
        const struct pm_emptied *e = &range[i];
        if (!overlap(e, offset, len))
            continue;
        if (e->fresh || count == MOST || !map_file(e, offset, len))
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

// The program has mapped something of its own over a part of it.
static bool is_away(const struct pm_emptied *e) {
    uint64_t at = e->offset;
    return pm_marks_free_of(PM_MARK_AWAY, &at, end_of(e)) != e->len;
}

void pm_emptied_map_idle(void) {
    for (unsigned i = 0; i < count;) {
        const struct pm_emptied *e = &range[i];
        bool used = e->fresh || e->promised || is_away(e);
        if (!used)
            pm_own_pages(pm_heap_at(e->offset), e->len, stored, &used);
        if (!used && map_file(e, e->offset, e->len))
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
