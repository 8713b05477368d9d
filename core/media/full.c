// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "full.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdatomic.h>

#include "base/os.h"
#include "base/os_file.h"
#include "heap.h"

#define PAUSE_MS 10000
#define NOTHING ((uint64_t)64 << 10) // less than this is no room

static _Atomic int refused;
static _Atomic uint64_t quiet_until;

void pm_full_note(int error) {
    if (error == ENOSPC || error == EDQUOT || error == PM_FULL_LIMIT || error == PM_FULL_ADDRESSES)
        atomic_store_explicit(&refused, error, memory_order_relaxed);
}

static bool find_space(const struct pm_file *file, struct pm_os_space *space) {
    return pm_os_space(file->fd, space) && space->all != 0;
}

// In memory a file system has the size that somebody gave it; a container's has 64 MB.
static const char *enlarge(const struct pm_file *file) {
    return pm_os_fs_type(file->fd) == TMPFS_MAGIC
               ? ", enlarge it (mount -o remount,size=; podman and docker run "
                 "--shm-size)"
               : "";
}

void pm_full_say(void) {
    int saved = errno, error = atomic_exchange_explicit(&refused, 0, memory_order_relaxed);
    uint64_t now = error ? pm_os_now_ms() : 0, until = atomic_load(&quiet_until);
    struct pm_os_space space;
    if (!error || !pm_heap_on_media() || now < until ||
        !atomic_compare_exchange_strong(&quiet_until, &until, now + PAUSE_MS)) {
        errno = saved;
        return;
    }
    bool known = find_space(&pm_heap.shard[0].data, &space);
    if (error == PM_FULL_LIMIT)
        pm_event(PM_EV_LIMIT_REACHED,
                 "the heap %.300s is at its limit of %lu bytes, so malloc returns NULL; "
                 "pmalloc-recover --grow --size SIZE %.300s raises it while the program runs",
                 pm_heap.dir, (unsigned long)pm_heap.limit, pm_heap.dir);
    else if (error == PM_FULL_ADDRESSES)
        pm_event(PM_EV_LIMIT_REACHED,
                 "the heap %.300s has %u data files of at most PMALLOC_SHARD bytes, and this "
                 "process has no addresses for another one, so malloc returns NULL; start the "
                 "program again, for a start takes as many as the heap's limit and directories "
                 "ask for: at most %u, fewer under `ulimit -v`",
                 pm_heap.dir, pm_heap.shards, (unsigned)PM_SHARDS);
    else if (error == EDQUOT)
        pm_event(
            PM_EV_NO_SPACE,
            "no space for the heap %.300s: its user's quota is used up, so malloc returns NULL; "
            "free some of it",
            pm_heap.dir);
    else if (known)
        pm_event(
            PM_EV_NO_SPACE,
            "no space for the heap %.300s: its file system has %lu of %lu bytes free, so malloc "
            "returns NULL%s; make room there%s (pmalloc-recover --spare 0 %.300s, if the heap has "
            "a reserve), or give the heap a directory on another device, while the program runs: "
            "pmalloc-recover --grow %.300s:DIR",
            pm_heap.dir, (unsigned long)space.free, (unsigned long)space.all,
            pm_heap_is_journaled() ? " (commits need room for their journal, too)" : "",
            enlarge(&pm_heap.shard[0].data), pm_heap.dir, pm_heap.dir);
    errno = saved;
}

bool pm_full_explains(const void *at) {
    uint64_t offset = pm_heap_offset(at);
    struct pm_os_space space;
    if (offset >= pm_range || !pm_heap_on_media())
        return false;
    struct pm_shard *s = pm_shard_at(offset);
    if (offset - s->offset >= s->frontier || !find_space(&s->data, &space) || space.free > NOTHING)
        return false;
    pm_event(
        PM_EV_NO_SPACE_AT_STORE,
        "SIGBUS: a store to %p in the heap %.300s found no space: its file system has %lu bytes "
        "free, because others took the space of a block over 2 MiB after malloc had seen it. "
        "Make room and start the program again, or use PMALLOC_RESERVE=strict, so that malloc "
        "takes the space",
        at, pm_heap.dir, (unsigned long)space.free);
    return true;
}
