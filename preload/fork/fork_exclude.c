// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fork_exclude.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/os.h"
#include "media/backing/marks.h"
#include "media/heap.h"
#include "media/heap_files.h"
#include "media/open/shard_make.h"
#include "roots/root_table.h"

bool pm_fork_exclude(bool on) {
    // Under PMALLOC_COMMIT what a child stores stays with it anyhow.
    if (!pm_heap_on_media() || pm_heap_is_journaled())
        return true;
    int advice = on ? MADV_DONTFORK : MADV_DOFORK;
    pm_shards_kept_from_children = on;
    bool good = true;
    uint64_t at = 0; // the kernel fails where the program has unmapped something
    for (uint64_t len; good && (len = pm_marks_free_of_locked(PM_MARK_HOLE, &at, pm_range)) != 0;
         at += len)
        good = pm_os_advise(pm_heap_at(at), len, advice);
    for (size_t i = 0; i < pm_heap_file_count(); i++) {
        const struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
        if (file->map && pm_heap_files[i].holds == PM_FILE_METADATA && file != &pm_heap.super_file)
            good &= pm_os_advise(file->map, file->reach, advice);
    }
    return pm_roots_fork_exclude(on) && good;
}
