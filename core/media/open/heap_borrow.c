// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_OPEN=private: the process gets private mappings of the heap's files.
#include <errno.h>
#include <sys/mman.h>

#include "heap_open.h"
#include "media/backing/backing.h"
#include "media/backing/fixed.h"
#include "media/commit/journal_over.h"
#include "media/core_dump.h"
#include "shard_make.h"

static bool map_private(void *at, size_t len, const struct pm_file *file) {
    const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
    return len == 0 ||
           mmap(at, len, PROT_READ | PROT_WRITE, flags, file->fd, (off_t)file->at) != MAP_FAILED;
}

// The data file is mapped private up to its end. Beyond it lie the addresses of new extents.
static bool borrow_shard(struct pm_shard *s) {
    char *base = pm_heap_at(s->offset);
    uint64_t size = s->data.size;
    if (!map_private(base, size, &s->data) ||
        (s->data.reach > size &&
         mmap(base + size, s->data.reach - size, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED))
        return false;
    s->limit = pm_shard_room(); // not the medium's
    pm_shard_is_anonymous(s, size);
    return true;
}

// The mapping of a data file is the only one that is likely to fail: `ulimit -d` counts it whole.
int pm_heap_borrow(struct pm_error *err) {
    const struct pm_medium *device = pm_fixed_device();
    if (device)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: PMALLOC_OPEN=private: a device cannot be mapped private; copy it with "
                       "pmalloc-backup, and name the copy",
                       device->path);
    bool good = map_private(pm_heap.super, pm_heap.super_file.reach, &pm_heap.super_file);
    for (unsigned i = 0; i < pm_heap.shards && good; i++)
        good = borrow_shard(&pm_heap.shard[i]);
    if (!good || !pm_journal_over_borrowed())
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: %lu bytes cannot be mapped private: %s (see also vm.overcommit_memory "
                       "and vm.max_map_count)",
                       pm_heap.dir, (unsigned long)pm_heap.length, pm_strerror(errno));
    pm_heap_become(PM_HEAP_BORROWED);
    pm_heap_dump_used();
    return PM_OK;
}
