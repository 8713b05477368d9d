// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The same as the end of the program (end.c), and then what a forked child does: it copies all
// pages that still show the file, and leaves the heap to others. Other threads are held until then:
// a fork of theirs would find it half done.
#include "named_close.h"

#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#include "base/message.h"
#include "commit/background.h"
#include "fork/private.h"
#include "media/heap.h"
#include "media/open/heap_open.h"
#include "open.h"
#include "sandbox.h"
#include "start.h"
#include "state/phase.h"
#include "threads/threads.h"

static bool is_ours(void) {
    return pm_process_opened_by_call() && pm_phase() == PM_RUNNING && pm_heap_on_media() &&
           pm_heap.super->state.owner_pid == (uint64_t)getpid();
}

// Nobody else runs.
static void give_up_heap(void) {
    pm_process_forget_heap();
    pm_private_copy(); // before another process may change the files
    pm_heap_release();
}

static bool end_alone(void) {
    if (!pm_process_end())
        pm_refuse(PM_EV_END_CUT_SHORT, PM_NO_CLOSE);
    give_up_heap();
    return true;
}

bool pm_process_close(void) {
    int error = !is_ours() ? EINVAL : pm_sandbox_forbids_end() ? EPERM : 0;
    if (error) {
        errno = error;
        return false;
    }
    bool paused = pm_background_pause();
    if (pm_threads_none() ? end_alone() : pm_process_end_beside(give_up_heap))
        return true;
    pm_background_go_on(paused);
    errno = EBUSY;
    return false;
}
