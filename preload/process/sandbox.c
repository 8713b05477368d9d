// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "sandbox.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bare_child.h"
#include "base/event_log.h"
#include "base/inherited_filter.h"
#include "base/message.h"
#include "base/os_file.h"
#include "base/proc.h"
#include "bus.h"
#include "commit/background.h"
#include "commit/commits.h"
#include "commit/outbox.h"
#include "commit/triggers.h"
#include "entry.h"
#include "fork/fork_trap.h"
#include "leaks_marker.h"
#include "live/helpers.h"
#include "media/heap.h"
#include "media/open/heap_open.h"
#include "media/outside.h"
#include "start.h"
#include "state/phase.h"
#include "state/removed.h"
#include "threads/calls.h"
#include "threads/filter.h"
#include "threads/postpone.h"

// ---- what we need -------------------------------------------------------------------------------

struct need {
    const char *name;
    long number;
    uint64_t second; // argument
};
#define CALL(name)                                                                                 \
    { #name, SYS_##name, 0 }
#ifdef __GLIBC__
#define FSTAT CALL(newfstatat)
#else
#define FSTAT CALL(fstat)
#endif

// A thread that is held, or waits at the end of a call.
static const struct need holds[] = {CALL(rt_sigreturn),
                                    CALL(gettid),
                                    CALL(getpid),
                                    CALL(rt_sigprocmask),
                                    {"futex", SYS_futex, FUTEX_WAIT},
                                    {"futex", SYS_futex, FUTEX_WAKE},
                                    {"futex", SYS_futex, FUTEX_WAIT_PRIVATE},
                                    {"futex", SYS_futex, FUTEX_WAKE_PRIVATE}};
// The thread that makes a commit, and a call that is a reason for one.
static const struct need commits[] = {CALL(rt_tgsigqueueinfo),
                                      CALL(rt_sigaction),
                                      CALL(nanosleep),
                                      CALL(openat),
                                      CALL(close),
                                      CALL(getdents64),
                                      CALL(read),
                                      CALL(readlink),
                                      CALL(fcntl),
                                      CALL(ioctl),
                                      CALL(pread64),
                                      CALL(pwrite64),
                                      CALL(fallocate),
                                      CALL(ftruncate),
                                      CALL(fdatasync),
                                      CALL(fsync),
                                      CALL(mmap),
                                      CALL(munmap),
                                      CALL(madvise),
                                      CALL(clock_gettime),
                                      CALL(newfstatat),
                                      FSTAT};
// The end of the program. A call that fails does no harm there.
static const struct need ends[] = {
    CALL(rt_sigaction), CALL(rt_sigreturn), CALL(rt_sigprocmask), CALL(tgkill),   CALL(nanosleep),
    CALL(openat),       CALL(close),        CALL(getdents64),     CALL(read),     CALL(lseek),
    CALL(pwrite64),     CALL(mmap),         CALL(munmap),         CALL(madvise),  CALL(munlockall),
    CALL(futex),        CALL(gettid),       CALL(getpid),         CALL(unlinkat), FSTAT};

// What can be done without: it is for where /proc is not seen (base/proc.h, threads/tasks.h), or
// spares other calls.
static const struct need detours[] = {CALL(process_vm_readv), CALL(lseek), CALL(kcmp),
                                      CALL(getsockopt), CALL(ppoll)};

static const struct need residency[] = {CALL(mincore)};
static const struct need drops[] = {CALL(process_madvise)};
static const struct need timeless[] = {CALL(statx)};

// A heap whose files were removed is written again (removed.h).
static const struct need mends[] = {CALL(mkdir),     CALL(flock),     CALL(getrandom),
                                    CALL(rename),    CALL(renameat),  CALL(renameat2),
                                    CALL(rmdir),     CALL(unlinkat),  CALL(newfstatat),
                                    CALL(ftruncate), CALL(fallocate), CALL(lseek)};

// A thread that helps to mark (gc/live/helpers.h), beside what the one that collects calls, too.
static const struct need helpers[] = {CALL(clone),
                                      CALL(exit),
                                      {"futex", SYS_futex, FUTEX_WAIT},
                                      {"futex", SYS_futex, FUTEX_WAIT_PRIVATE},
                                      {"futex", SYS_futex, FUTEX_WAKE_PRIVATE}};

// A fork that is trapped (fork_trap.h).
static const struct need traps[] = {CALL(prctl), CALL(arch_prctl), CALL(sigaltstack),
                                    CALL(rt_sigaction), CALL(rt_sigreturn)};
// A signal that arrives in a slow path (threads/postpone.h).
static const struct need postpones[] = {CALL(rt_sigprocmask), CALL(rt_sigaction),
                                        CALL(getpid),         CALL(gettid),
                                        CALL(tgkill),         CALL(rt_tgsigqueueinfo)};

// What PMALLOC_LOG and PMALLOC_ON take, children included (base/event_hook.h).
static const struct need logs[] = {CALL(rt_sigprocmask), CALL(rt_sigpending), CALL(rt_sigtimedwait),
                                   CALL(fstat),          CALL(write),         CALL(clock_gettime)};
static const struct need children[] = {
    CALL(clone),  CALL(wait4),        CALL(exit),           CALL(openat),
    CALL(socket), CALL(connect),      CALL(bind),           CALL(dup2),
    CALL(close),  CALL(rt_sigaction), CALL(chdir),          CALL(setsid),
    CALL(execve), CALL(write),        CALL(rt_sigprocmask), {"close_range", 436, 0}};

// A call in the list for which the filter says this or worse. NULL: there is none.
static const char *missed(const struct sock_fprog *filter, const struct need *list, size_t count,
                          enum pm_filter_verdict bad) {
    for (size_t i = 0; i < count; i++)
        if (pm_filter_asks(filter, list[i].number, list[i].second) >= bad)
            return list[i].name;
    return NULL;
}
#define MISSED(filter, list, bad) missed(filter, list, sizeof list / sizeof *list, bad)

// ---- what follows from it -----------------------------------------------------------------------

static _Atomic(const char *) end_misses;
static _Atomic bool mute; // a filter forbids to say something
static _Atomic bool no_hold;
static _Atomic bool no_own_commit; // an earlier filter forbids it to the program's threads

bool pm_sandbox_forbids_end(void) {
    return atomic_load_explicit(&end_misses, memory_order_relaxed);
}

bool pm_sandbox_forbids_hold(void) {
    return atomic_load_explicit(&no_hold, memory_order_relaxed) ||
           pm_inherited_ends(PM_INHERITED_RT_TGSIGQUEUEINFO);
}

static bool concerns_us(void) {
    return pm_phase() == PM_RUNNING && pm_heap_on_media() &&
           !(pm_sandbox_forbids_end() && (!pm_heap_is_journaled() || pm_commits_are_stopped())) &&
           pm_heap.super->state.owner_pid == (uint64_t)getpid();
}

static void stop_commits(const struct pm_sandbox *s, bool here) {
    bool made = here && pm_commits_make() == 0;
    pm_commits_stop(true);
    pm_event(
        PM_EV_COMMITS_STOPPED,
        "PMALLOC_COMMIT: a seccomp filter forbids %s, which commits need; so there are no more, "
        "and %s stays as of the one %s; allow that call, or unset PMALLOC_COMMIT",
        s->commits, pm_heap.dir, made ? "made just before the filter" : "before");
}

static void say_no_last(const struct pm_sandbox *s) {
    pm_event(PM_EV_LAST_COMMIT_FAILED,
             "PMALLOC_COMMIT: a seccomp filter forbids %s, which the end of the program needs; so "
             "there is no commit at the end, and %s stays as of the one before",
             s->end, pm_heap.dir);
}

bool pm_sandbox_is_mute(void) { return atomic_load_explicit(&mute, memory_order_relaxed); }

void pm_sandbox_say_end(void) {
    const char *call = atomic_load_explicit(&end_misses, memory_order_relaxed);
    if (call && !pm_sandbox_is_mute())
        pm_event(PM_EV_END_CUT_SHORT,
                 "a seccomp filter forbids %s, which exit() needs to part from the heap %s; so the "
                 "program ends here, without its destructors, which would free what is there",
                 call, pm_heap.dir);
}

void pm_sandbox_before(struct pm_sandbox *s, const struct sock_fprog *filter, bool all) {
    int saved = errno;
    pm_bus_forbid();
    atomic_store_explicit(&pm_outside_nameless, true, memory_order_relaxed);
    *s = (struct pm_sandbox){.no_helpers = MISSED(filter, helpers, PM_FILTER_FAILS),
                             .no_hold = MISSED(filter, holds, PM_FILTER_FAILS) ||
                                        MISSED(filter, commits, PM_FILTER_FAILS),
                             .no_detour = MISSED(filter, detours, PM_FILTER_ENDS),
                             .no_residency = MISSED(filter, residency, PM_FILTER_ENDS),
                             .no_drops = MISSED(filter, drops, PM_FILTER_ENDS),
                             .no_statx = MISSED(filter, timeless, PM_FILTER_ENDS) &&
                                         atomic_exchange(&pm_os_fd_by_statx, false),
                             .no_mend = MISSED(filter, mends, PM_FILTER_ENDS),
                             .no_log = MISSED(filter, logs, PM_FILTER_ENDS),
                             .no_children = MISSED(filter, children, PM_FILTER_ENDS),
                             .no_trap = MISSED(filter, traps, PM_FILTER_FAILS),
                             .at_once = MISSED(filter, postpones, PM_FILTER_FAILS)};
    pm_settle();
    pm_marker_end(); // pmalloc-info has the program make calls for it
    pm_inherited_before_another();
    if (!concerns_us())
        return;
    pm_outbox_end(); // it makes calls that the filter may forbid
    bool journaled = pm_heap_is_journaled() && !pm_commits_are_stopped();
    bool here = !atomic_load_explicit(&no_own_commit, memory_order_relaxed);
    const char *own = MISSED(filter, commits, PM_FILTER_FAILS);
    if (journaled)
        s->commits = MISSED(filter, holds, PM_FILTER_FAILS);
    if (journaled && !s->commits && (all || pm_commits_mode() != PM_COMMITS_TIME))
        s->commits = own;
    s->end = MISSED(filter, ends, PM_FILTER_ENDS);
    if (pm_heap_is_journaled() && !s->end)
        s->end = s->commits ? s->commits : own;
    if (s->commits)
        stop_commits(s, here);
    else if (s->end && journaled && !pm_sandbox_forbids_end())
        say_no_last(s);
    // Its work is over; the filter may end it, too; and after SYS_exit, the only end in strict
    // mode, it would keep the process alive.
    if (s->commits || !filter || (s->end && all))
        s->paused = pm_background_pause();
    s->mute = pm_filter_asks(filter, SYS_write, STDERR_FILENO) != PM_FILTER_ALLOWS;
    if (own)
        atomic_store_explicit(&no_own_commit, true, memory_order_relaxed);
    errno = saved;
}

// Nothing here makes a system call after a filter that forbids it.
void pm_sandbox_after(const struct pm_sandbox *s, bool refused) {
    int saved = errno;
    if (refused && s->commits) {
        pm_commits_stop(false);
        atomic_store_explicit(&no_own_commit, false, memory_order_relaxed);
        pm_event(PM_EV_COMMITS_GO_ON, "PMALLOC_COMMIT: the filter was refused: commits go on");
    }
    if (refused) {
        if (s->no_statx)
            atomic_store_explicit(&pm_os_fd_by_statx, true, memory_order_relaxed);
        pm_background_go_on(s->paused);
    } else {
        if (s->no_helpers)
            atomic_store_explicit(&pm_helpers_forbidden, true, memory_order_relaxed);
        if (s->no_hold)
            atomic_store_explicit(&no_hold, true, memory_order_relaxed);
        if (s->no_mend)
            atomic_store_explicit(&pm_removed_misses, s->no_mend, memory_order_relaxed);
        if (s->no_detour)
            atomic_store_explicit(&pm_proc_no_detour, true, memory_order_relaxed);
        if (s->no_residency)
            pm_inherited_another_ends(PM_INHERITED_MINCORE);
        if (s->no_drops)
            pm_inherited_another_ends(PM_INHERITED_PROCESS_MADVISE);
        if (s->no_log)
            pm_event_log_forbid();
        if (s->no_children)
            pm_bare_child_forbid();
        if (s->no_trap)
            pm_fork_trap_forbidden = true;
        if (s->at_once)
            pm_postpone_never();
        if (s->commits)
            pm_triggers_on = pm_calls_recorded = false;
        if (s->end)
            atomic_store_explicit(&end_misses, s->end, memory_order_relaxed);
        if (s->mute)
            atomic_store_explicit(&mute, true, memory_order_relaxed);
    }
    errno = saved;
}
