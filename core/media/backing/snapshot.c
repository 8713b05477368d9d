// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "snapshot.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "base/populate.h"
#include "data_pin.h"
#include "media/heap.h"

char *pm_snapshot;

static uint64_t size;    // of the mapping
static uint64_t *kept;   // a bit for each page of it: it was copied
static uint64_t *loaded; // the same: the kernel could read it
static _Atomic(char *) unreadable;
static int pins[PM_SHARDS];        // pm_shard_pin() + 1
static uint64_t length[PM_SHARDS]; // of the data file then

static uint64_t words(void) { return (size >> PM_PAGE_SHIFT) / 64 + 1; }

static void unpin(void) {
    for (unsigned i = 0; i < PM_SHARDS; i++) {
        int fd = pins[i] - 1;
        pins[i] = 0;
        // The program may have closed it, and opened another file by its number.
        if (fd >= 0 && pm_os_fd_is(fd, pm_heap.shard[i].data.dev, pm_heap.shard[i].data.ino))
            close(fd);
    }
}

static bool map_shard(unsigned i, char *at) {
    struct pm_shard *s = &pm_heap.shard[i];
    length[i] = s->frontier < s->data.size ? s->frontier : s->data.size;
    pins[i] = pm_os_fd_high(pm_shard_pin(s)) + 1; // until the end of the collection
    return pins[i] && (!length[i] || mmap(at + s->offset, length[i], PROT_READ | PROT_WRITE,
                                          MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, s->data.fd,
                                          (off_t)s->data.at) != MAP_FAILED);
}

bool pm_snapshot_take(void) {
    const struct pm_shard *last = &pm_heap.shard[pm_heap.shards - 1];
    size = last->offset + last->frontier + PM_PAGE_SIZE;
    char *at = pm_os_reserve(size);
    kept = pm_os_reserve(words() * sizeof *kept);
    loaded = pm_os_reserve(words() * sizeof *loaded);
    atomic_store_explicit(&unreadable, NULL, memory_order_relaxed);
    bool good = at && kept && loaded;
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good = map_shard(i, at);
    if (good) { // neither a child nor a core file has use for it
        pm_os_advise(at, size, MADV_DONTFORK);
        pm_os_advise(at, size, MADV_DONTDUMP);
    }
    pm_snapshot = at;
    int saved = errno;
    if (!good)
        pm_snapshot_drop();
    errno = saved;
    return good;
}

void pm_snapshot_drop(void) {
    unpin();
    if (pm_snapshot)
        munmap(pm_snapshot, size);
    if (kept)
        munmap(kept, words() * sizeof *kept);
    if (loaded)
        munmap(loaded, words() * sizeof *loaded);
    pm_snapshot = NULL;
    kept = loaded = NULL;
}

void pm_snapshot_forked(void) {
    pm_snapshot = NULL;
    pm_snapshot_drop();
}

// ---- what cannot be read ------------------------------------------------------------------------

// False: a look at the page would be a SIGBUS. Any other error says nothing of it.
static bool populate(uint64_t page, int how) {
    char *at = pm_snapshot + (page << PM_PAGE_SHIFT);
    bool good = !pm_populate_refused(pm_populate(at, PM_PAGE_SIZE, how));
    if (!good)
        atomic_store_explicit(&unreadable, at, memory_order_release);
    return good;
}

bool pm_snapshot_load(const void *bytes, uint64_t len) {
    uint64_t offset = (uint64_t)((const char *)bytes - pm_snapshot);
    uint64_t page = offset >> PM_PAGE_SHIFT, last = (offset + len - 1) >> PM_PAGE_SHIFT;
    for (; page <= last; page++) {
        uint64_t bit = 1ull << page % 64;
        if (!(loaded[page / 64] & bit) && !populate(page, MADV_POPULATE_READ))
            return false;
        loaded[page / 64] |= bit;
    }
    return true;
}

const void *pm_snapshot_unreadable(void) {
    return atomic_load_explicit(&unreadable, memory_order_acquire);
}

// ---- keeping ------------------------------------------------------------------------------------

// Release: a reader that finds the page to be a hole in the file comes after the change of the
// file, and so sees the bit.
static void keep_page(uint64_t offset) {
    if (!populate(offset >> PM_PAGE_SHIFT, MADV_POPULATE_WRITE))
        return;
    __atomic_fetch_or(pm_snapshot + offset, 0, __ATOMIC_RELAXED); // the kernel copies the page
    uint64_t page = offset >> PM_PAGE_SHIFT;
    __atomic_fetch_or(&kept[page / 64], 1ull << page % 64, __ATOMIC_RELEASE);
}

void pm_snapshot_keep(struct pm_written *known, unsigned shard, uint64_t first, uint64_t pages) {
    uint64_t base = pm_heap.shard[shard].offset, at = base + (first << PM_PAGE_SHIFT);
    uint64_t end = at + (pages << PM_PAGE_SHIFT), part;
    end = end < base + length[shard] ? end : base + length[shard];
    for (; at < end && (part = pm_heap_next_in_file(known, &at, end)) != 0; at += part)
        for (uint64_t page = at & ~(PM_PAGE_SIZE - 1); page < at + part; page += PM_PAGE_SIZE)
            keep_page(page);
}

// ---- reading ------------------------------------------------------------------------------------

// The first kept page from `at` on, `end` if there is none before it.
static uint64_t next_kept(uint64_t at, uint64_t end) {
    uint64_t page = at >> PM_PAGE_SHIFT, last = (end + PM_PAGE_SIZE - 1) >> PM_PAGE_SHIFT;
    while (page < last) {
        uint64_t bits = __atomic_load_n(&kept[page / 64], __ATOMIC_ACQUIRE) >> page % 64;
        if (bits) {
            page += (unsigned)__builtin_ctzll(bits);
            break;
        }
        page = (page | 63) + 1;
    }
    uint64_t found = page << PM_PAGE_SHIFT;
    return page >= last ? end : found > at ? found : at;
}

uint64_t pm_snapshot_next_data(struct pm_written *known, uint64_t *offset, uint64_t end) {
    uint64_t from = *offset, at = from, len = pm_heap_next_in_file(known, &at, end);
    uint64_t copied = next_kept(from, len ? at : end);
    if (copied >= (len ? at : end)) {
        *offset = at;
        return len;
    }
    uint64_t next = (copied & ~(PM_PAGE_SIZE - 1)) + PM_PAGE_SIZE;
    *offset = copied;
    return (next < end ? next : end) - copied;
}
