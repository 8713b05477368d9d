// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "offline.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "blocks/tables.h"
#include "media/backing/volume.h"
#include "media/open/heap_open.h"
#include "media/open/heap_patient.h"

static int say_busy(struct pm_error *err, const char *dir) {
    pid_t pid = err->holder.pid;
    if (err->why == PM_WHY_LENT)
        return err->status; // the text of pm_dir_lock() says it
    // This is the pid of the last program that had the heap open. A tool that has it open leaves no
    // pid. So name the process only if it is running.
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH))
        pid = err->holder.other;
    if (pid <= 0)
        return pm_fail_anew(err,
                            "%.180s is in use by another process; wait for it to end; "
                            "`pmalloc-info %.180s` looks at it meanwhile",
                            dir, dir);
    return pm_fail_anew(err,
                        "%.180s is in use by process %d; wait for it to end; `pmalloc-info %.180s` "
                        "looks at it meanwhile",
                        dir, (int)pid, dir);
}

static int reserve_tables(const char *dir, struct pm_error *err) {
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && strstr(preloaded, "libpmalloc"))
        return pm_fail(err, PM_OPERATIONAL,
                       "this tool itself runs under PMAlloc, so the heap's addresses are taken; "
                       "unset LD_PRELOAD for it");
    if (!pm_tables_reserve(pm_os_cores(), pm_volume_count(dir)))
        return pm_fail(err, PM_OPERATIONAL, "no address space for the allocator's tables");
    return PM_OK;
}

int pm_offline_open(const char *dir, enum pm_open_mode mode, struct pm_error *err) {
    int status = reserve_tables(dir, err);
    if (status != PM_OK)
        return status;
    status = pm_heap_open_patient(dir, mode, err);
    if (status != PM_OK)
        return pm_is_busy(err) ? say_busy(err, dir) : status;
    status = pm_tables_extend(err);
    if (status == PM_OK)
        status = pm_heap_map(err);
    if (status != PM_OK)
        pm_heap_release();
    return status;
}
