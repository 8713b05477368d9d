// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "commit_room.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/options.h"
#include "base/os_file.h"
#include "file.h"

#define SPARE ((uint64_t)256 << 10)
// The bound is a soft one: threads change more pages before PMAlloc's thread has looked, and while
// the commit is being made.
#define BOUNDS 2u
#define UNSEEN ((uint64_t)16 << 20)
// What the heap had taken before the last commit, and the program has stored to since.
#define LATER ((uint64_t)12 << 20)
// A large medium keeps a part of itself free for a commit, and no more: commits of many gigabytes
// are rare, and one that fails for want of room is made later.
#define PART 8u
#define PART_LEAST ((uint64_t)64 << 20)

// As preload/commit/commit_bound.c has it: by default a quarter of the memory.
static uint64_t bound(void) {
    static _Atomic uint64_t by_default;
    struct sysinfo info;
    if (pm_options.commit_pages.number)
        return pm_options.commit_pages.number * PM_PAGE_SIZE;
    uint64_t bytes = atomic_load_explicit(&by_default, memory_order_relaxed);
    if (!bytes && syscall(SYS_sysinfo, &info) == 0) {
        bytes = (uint64_t)info.totalram * info.mem_unit / 4;
        atomic_store_explicit(&by_default, bytes, memory_order_relaxed);
    }
    return bytes ? bytes : UINT64_MAX / BOUNDS / 2;
}

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// What the data files have, in bytes.
static uint64_t in_files(void) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        struct stat st;
        struct pm_file *data = &pm_heap.shard[i].data;
        if (!pm_file_ready(data) || fstat(data->fd, &st) != 0)
            return UINT64_MAX / 2;
        sum += (uint64_t)st.st_blocks * 512;
    }
    return sum;
}

static _Atomic uint64_t committed; // how long the heap was at the last commit
static _Atomic bool is_short;      // that one found no room

void pm_commit_found_room(bool found, uint64_t length) {
    if (found)
        atomic_store_explicit(&committed, length, memory_order_relaxed);
    if (atomic_load_explicit(&is_short, memory_order_relaxed) == found)
        atomic_store_explicit(&is_short, !found, memory_order_relaxed);
}

// Pages of one commit, their headers, and changed metadata. What has grown since the last commit is
// changed, too: where that lies on another medium, nothing else would bound it.
static uint64_t needed(uint64_t fresh) {
    uint64_t length = atomic_load_explicit(&pm_heap.length, memory_order_relaxed);
    uint64_t before = atomic_load_explicit(&committed, memory_order_relaxed);
    uint64_t grown = length > before ? length - before : 0;
    uint64_t unseen = grown + LATER > UNSEEN ? grown + LATER : UNSEEN;
    uint64_t bytes = least(least(length, in_files() + fresh), BOUNDS * bound() + unseen);
    return bytes + bytes / 16 + SPARE;
}

// How long the journal may become, and how much the medium has in all, in bytes. False: there is no
// end, or the system does not tell.
static bool room(uint64_t *bytes, uint64_t *all) {
    struct pm_os_space space;
    struct stat st;
    if (!pm_file_ready(&pm_heap.journal) || !pm_os_space(pm_heap.journal.fd, &space) ||
        !space.all || fstat(pm_heap.journal.fd, &st) != 0)
        return false;
    *bytes = space.free + (uint64_t)st.st_blocks * 512;
    *all = space.all;
    return true;
}

bool pm_commit_has_room(uint64_t fresh, uint64_t taken) {
    uint64_t has, all;
    // A part of a fixed medium has its room for good: waiting brings none.
    if (!pm_heap.journal.length && atomic_load_explicit(&is_short, memory_order_relaxed))
        return false;
    int saved = errno;
    bool good =
        !room(&has, &all) ||
        has >= taken + least(needed(fresh), all / PART > PART_LEAST ? all / PART : PART_LEAST);
    errno = saved;
    return good;
}
