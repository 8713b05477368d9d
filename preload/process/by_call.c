// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "by_call.h"

#include <errno.h>
#include <sys/stat.h>

#include "before_main.h"
#include "media/heap.h"
#include "open.h"
#include "start.h"
#include "state/phase.h"

// By the thread that has moved the phase to STARTING.
static int open_in_its_turn(const char *dir, bool existing, struct pm_error *err) {
    int status = pm_open_called(dir, existing, err);
    if (status == PM_OK)
        pm_process_give_caches();
    pm_phase_started(status == PM_OK ? PM_READY : PM_WAITING);
    if (status != PM_OK)
        return status;
    pm_process_begin_main();
    return PM_OK;
}

static int is_open_already(const char *dir, struct pm_error *err) {
    struct stat its, ours;
    if (pm_open_chosen()->left_out) {
        errno = ENOTSUP;
        return pm_fail(err, PM_OPERATIONAL, "no heap for this program: %s", pm_open_chosen()->why);
    }
    if (pm_heap_on_media() && stat(dir, &its) == 0 && stat(pm_heap.dir, &ours) == 0 &&
        its.st_dev == ours.st_dev && its.st_ino == ours.st_ino)
        return PM_OK;
    errno = EBUSY;
    if (pm_heap_on_media())
        return pm_fail(err, PM_OPERATIONAL, "this process has the heap %s open already",
                       pm_heap.dir);
    return pm_fail(err, PM_OPERATIONAL,
                   pm_process_opened_by_call()
                       ? "this process has had a heap already"
                       : "this process is on volatile memory already; call pmalloc_open() "
                         "earlier, or name the heap in PMALLOC_HEAP");
}

int pm_process_open(const char *dir, bool existing, struct pm_error *err) {
    enum pm_phase seen = pm_phase();
    pm_process_begin_called();
    while ((seen = pm_phase()) < PM_READY) {
        if (seen == PM_WAITING && pm_open_chosen()->left_out)
            break;
        if (seen == PM_STARTING && pm_phase_starts_here()) {
            errno = EDEADLK;
            return pm_fail(err, PM_OPERATIONAL, "in a signal handler that interrupts an opening");
        }
        if (seen == PM_WAITING && pm_phase_claim(seen))
            return open_in_its_turn(dir, existing, err);
        pm_phase_await_start();
    }
    return is_open_already(dir, err);
}
