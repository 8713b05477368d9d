// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// When a process ends, the kernel first frees its memory and then closes its files, with their
// locks. With much memory that takes a while. Meanwhile the heap looks busy.
//
// A file that was mapped, and its lock, can be there for longer than the process: as long as
// somebody reads its memory (ps, a debugger, process_vm_readv), who began before it was killed. And
// under Linux 7.2 for up to 1.9 s, which were seen in a guest. The heap looks busy then, and nobody
// has it.
#include <time.h>

#include "base/os.h"
#include "heap_lock.h"
#include "heap_open.h"
#include "media/heap.h"

#define PATIENCE_MS 10000
#define LINGERS_MS 3000 // whoever has it may also be in another PID namespace

// The start time tells the owner from a later process with the same number.
static bool is_ending(const struct pm_holder *holder) {
    return holder->pid > 0 && pm_os_start_time(holder->pid) == holder->start &&
           pm_os_is_ending(holder->pid);
}

static bool lingers(const struct pm_error *err) {
    const struct pm_holder *holder = &err->holder;
    return holder->mapped && !holder->other &&
           (err->why == PM_WHY_LENT || pm_holder_is_gone(holder));
}

int pm_heap_open_patient(const char *dir, enum pm_open_mode mode, struct pm_error *err) {
    const struct timespec tick = {.tv_nsec = 1000000};
    uint64_t begun = pm_os_now_ms(), end = begun + PATIENCE_MS;
    bool tried = false; // since the holder has gone
    for (;;) {
        int status = pm_heap_open(dir, mode, false, err);
        if (status == PM_OK || !pm_is_busy(err))
            return status;
        if (!is_ending(&err->holder)) {
            // It may have ended since it kept the lock from us.
            bool again = !tried && pm_holder_is_gone(&err->holder);
            tried |= again;
            if (again)
                continue;
            if (!lingers(err) || pm_os_now_ms() >= begun + LINGERS_MS)
                return status;
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            continue;
        }
        if (pm_os_now_ms() >= end)
            return pm_fail_anew(err,
                                "%s is still held by process %d, which has been killed or has "
                                "ended: after %d s the kernel has not finished with it; try again "
                                "later, or set PMALLOC_BUSY=wait",
                                pm_heap.dir, (int)err->holder.pid, PATIENCE_MS / 1000);
        nanosleep(&tick, NULL);
    }
}
