// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "before_main.h"
#include "roots/root_table.h"

#include <errno.h>
#include <unistd.h>

#include "bad_read.h"
#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "commit/background.h"
#include "commit/commits.h"
#include "commit/late.h"
#include "commit/triggers.h"
#include "descent.h"
#include "fork/fork_exclude.h"
#include "fork/stray.h"
#include "media/heap.h"
#include "media/open/heap_dir.h"
#include "media/persist.h"
#include "moved.h"
#include "open.h"
#include "pmalloc.h"
#include "rootless.h"
#include "stacks.h"
#include "start.h"
#include "start_line.h"
#include "start_seen.h"
#include "state/phase.h"
#include "state/replaced.h"

extern char **environ;

static const char *advice(int error) {
    return pm_os_is_forbidden(error)
               ? "; does a seccomp filter forbid fdatasync? allow it, or unset PMALLOC_COMMIT"
           : error == ENOSPC || error == EDQUOT ? "; make room on its disk, and start again"
           : error == EFBIG                     ? "; raise `ulimit -f`"
           : error == EAGAIN
               ? "; does it block all signals, or is `ulimit -n` too low to look for it?"
               : "";
}

// So that the roots are on record, whatever comes later.
static void first_commit(void) {
    int error = pm_heap_is_journaled() ? pm_commits_make() : 0;
    if (error)
        pm_refuse(PM_EV_COMMIT_FAILED,
                  "PMALLOC_COMMIT: the first commit has failed: %s; nothing of %s is lost%s",
                  pm_commits_reason(error), pm_heap.dir, advice(error));
}

static void capture_roots(void) {
    struct pm_error err;
    bool reads = pm_heap_state() != PM_HEAP_VOLATILE;
    if (reads)
        pm_bad_reads_begin();
    if ((pm_heap_on_media() && pm_roots_capture(&err) != PM_OK) ||
        (pm_heap_state() == PM_HEAP_BORROWED && pm_roots_restore(&err) != PM_OK)) {
        if (pm_heap.created)
            pm_heap_remove();
        pm_refuse(pm_event_of(&err), "%s", err.text);
    }
    if (reads)
        pm_bad_reads_end();
}

void pm_process_begin_main(void) {
    char **variables = environ;
    const struct pm_recovery *recovery = pm_process_recovery();
    capture_roots();
    pm_fork_exclude(true);
    pm_stray_watch();
    if (pm_heap_on_media() && !pm_heap.nameless && !pm_process_opened_by_call())
        pm_descent_tell(variables);
    pm_phase_move(PM_READY, PM_RUNNING);
    pm_stacks_record();
    pm_moved_note();
    first_commit();
    pm_persist_exit = 0;
    if (!pm_heap.created && recovery->roots && pm_heap_on_media())
        pm_replaced_note();
    pm_late_start();
    pm_triggers_start();
    pm_moved_say();
    if (pm_options.verbose.number)
        pm_start_line(pm_open_chosen(), recovery);
    pm_rootless_say_start(pm_process_default_heap(), recovery);
    if (recovery->out)
        pm_out_say(recovery->out, false);
    pm_background_start();
    pm_start_seen_stage(pm_heap_on_media() ? PM_START_OVER : PM_START_UNHEAPED);
}

void pm_process_before_main(void) {
    pm_phase_main_begins();
    if (pm_phase() == PM_WAITING) { // there is no heap, and nothing to capture
        pm_persist_exit = 0;
        if (pm_options.verbose.number)
            pm_start_line(pm_open_chosen(), pm_process_recovery());
        pm_start_seen_stage(PM_START_UNHEAPED);
        return;
    }
    pm_process_start();
    pm_process_begin_main();
}
