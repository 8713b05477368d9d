// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "stray.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bare_thread.h"
#include "base/cancel.h"
#include "base/decay.h"
#include "base/file_limit.h"
#include "base/here.h"
#include "base/lock.h"
#include "base/message.h"
#include "base/os.h"
#include "base/os_file.h"
#include "base/signal_stack.h"
#include "blocks/arena.h"
#include "blocks/returns.h"
#include "blocks/tcache.h"
#include "commit/background.h"
#include "commit/commits.h"
#include "fork.h"
#include "media/backing/fixed.h"
#include "media/backing/marks.h"
#include "media/heap.h"
#include "media/open/heap_open.h"
#include "pages/extent.h"
#include "private.h"
#include "roots/root_table.h"
#include "state/advice.h"
#include "state/phase.h"
#include "threads/action.h"
#include "threads/postpone.h"
#include "threads/threads.h"

#define KCMP_FILES 2

// ---- parting ------------------------------------------------------------------------------------

// Whether the two have one table of descriptors. If the kernel does not tell, they are taken for
// shared: a descriptor is then left open.
static bool shares_descriptors(long parent) {
    return pm_bare_call(SYS_kcmp, pm_bare_call(SYS_getpid, 0, 0, 0, 0), parent, KCMP_FILES, 0) <= 0;
}

static bool somebody_held;

// Our own thread may have held the first two, for a commit or for what is old. They guard no
// tables.
static void look(struct pm_lock *lock) {
    if (lock != &pm_commit_lock && lock != &pm_age_lock)
        somebody_held |= atomic_load_explicit(&lock->word, memory_order_relaxed) != 0;
}

// A lock that another thread of the parent held is never released here, and what it guards is amid
// a change.
static bool tables_are_whole(void) {
    somebody_held = pm_nested();
    pm_process_each_lock(look);
    return !somebody_held;
}

// The shared mappings are not there. So whatever is copied here comes from the files.
static bool leave_shared(bool whole) {
    if (pm_heap_is_fixed()) // a device cannot be mapped private, and there is nothing to copy from
        return false;
    bool known = whole && pm_private_find(true);
    pm_heap_become(PM_HEAP_PARTED);
    return pm_roots_part() && pm_private_part(known, whole, true);
}

static bool leave_journaled(bool whole) {
    if (!pm_roots_privatise())
        return false;
    if (whole)
        return pm_private_enter(true);
    pm_private_keep(false);
    return true;
}

static void leave(bool whole) {
    long parent = (long)pm_heap.super->state.owner_pid;
    pm_os_descriptors_shared |= shares_descriptors(parent);
    if (!(pm_heap_is_journaled() ? leave_journaled(whole) : leave_shared(whole)))
        pm_refuse(PM_EV_FORK_REFUSED,
                  "a child that was made by a system call of the program's own: no private copy of "
                  "the heap %s; make it by fork(), or start the program with "
                  "PMALLOC_BACKING=volatile",
                  pm_heap.dir);
    pm_heap_release();
    pm_commits_forked(false);
    pm_private_copy();
    pm_marks_renew(0, pm_range);
}

// Where tables are not whole, requests are served from the fallback arena, like requests of a
// handler are. A thread that holds locks itself goes on with what it does.
static void part(void) {
    bool nested = pm_nested(), whole = tables_are_whole();
    pm_locks_lost |= !nested && !whole;
    if (!nested)
        pm_process_each_lock(pm_lock_reset);
    pm_postpone_here();
    pm_file_limit_forked();
    pm_background_forked();
    pm_threads_forked();
    pm_phase_forked();
    if (pm_heap_on_media())
        leave(whole);
    if (whole) {
        pm_advice_forked();
        pm_tcache_orphans(pm_tcache);
        pm_extent_cache_orphans();
        pm_remote_orphans();
    }
}

static bool part_once(void) {
    uint64_t all = ~0ull, mask;
    int saved = errno;
    if (pm_fork_stage() != PM_STAGE_NONE)
        return false;
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&mask, sizeof all);
    part();
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof mask);
    errno = saved;
    return true;
}

// ---- the handler --------------------------------------------------------------------------------

// With the default again the fault comes once more, and ends the process as it would have. A signal
// that was sent is sent again. A filter of the program's may forbid all of it: then the end is
// another one.
static void go_its_way(int number, siginfo_t *info) {
    const struct pm_action plain = {.handler = NULL};
    long self = pm_bare_call(SYS_getpid, 0, 0, 0, 0), thread = pm_bare_call(SYS_gettid, 0, 0, 0, 0);
    if (pm_action_set(number, &plain, NULL) != 0 ||
        (info->si_code <= 0 &&
         pm_bare_call(SYS_rt_tgsigqueueinfo, self, thread, number, (long)info) != 0))
        __builtin_trap();
}

void pm_stray_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    if (pm_is_here() || !pm_here_lost())
        go_its_way(number, info);
}

static bool listens;

bool pm_stray_listen(void) {
    struct pm_action before,
        ours = {pm_stray_fault, SA_SIGINFO | SA_ONSTACK | PM_SA_RESTORER, pm_threads_return, 0};
    return listens && pm_action_set(SIGSEGV, NULL, &before) == 0 && !before.handler &&
           pm_action_set(SIGSEGV, &ours, NULL) == 0;
}

// Linux before 4.14 cannot wipe memory in children.
static bool watch(void) {
    static _Atomic uint32_t *word;
    if (word)
        return true;
    _Atomic uint32_t *fresh = pm_os_reserve(PM_PAGE_SIZE);
    if (!fresh || !pm_os_advise(fresh, PM_PAGE_SIZE, MADV_WIPEONFORK))
        return false;
    pm_here_watch(fresh, part_once);
    word = fresh;
    return true;
}

void pm_stray_watch(void) {
    int saved = errno;
    if (pm_heap_on_media() && watch()) {
        listens = !pm_heap_is_journaled();
        pm_stray_listen();
    }
    errno = saved;
}
