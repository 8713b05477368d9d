// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "triggers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/proc.h"
#include "commits.h"
#include "idle.h"
#include "late.h"
#include "media/heap.h"
#include "outbox.h"
#include "state/phase.h"
#include "state/replaced.h"

bool pm_triggers_on;

static bool is_of_mode(void) {
    return pm_commits_mode() == PM_COMMITS_IDLE || pm_commits_mode() == PM_COMMITS_OUTPUT;
}

void pm_triggers_start(void) {
    pm_triggers_on = pm_late_awaited || (pm_heap_is_journaled() && is_of_mode());
    if (pm_heap_is_journaled() && pm_commits_answers_us())
        pm_outbox_begin(pm_commits_answers_us());
}

// /dev/null, /dev/zero and their kin.
#define MEMORY_DEVICES 1

static bool is_memory(const struct stat *st) {
    return S_ISCHR(st->st_mode) && major(st->st_rdev) == MEMORY_DEVICES;
}

// Whether another process or a person may be at the other end. An eventfd and its kin have a mode
// without a type.
static bool is_conversation(const struct stat *st) {
    return S_ISFIFO(st->st_mode) || S_ISSOCK(st->st_mode) || !(st->st_mode & S_IFMT) ||
           (S_ISCHR(st->st_mode) && !is_memory(st));
}

static bool waits_for_data(int fd) {
    struct stat st;
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && !(flags & O_NONBLOCK) && fstat(fd, &st) == 0 && is_conversation(&st);
}

// The kernel answers on a netlink socket, such as which addresses the machine has: what a server
// asks while it sets itself up.
static bool asks_the_kernel(int fd) {
    int family = 0;
    socklen_t len = sizeof family;
    bool asks = !atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed);
    return asks && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len) == 0 &&
           family == AF_NETLINK;
}

// Somebody reads the standard output of a program, and its messages, also where they are a file.
// A write to a file that was opened with O_SYNC or O_DSYNC is durable when it returns.
static bool is_heard(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0 || is_memory(&st))
        return false;
    return is_conversation(&st) || fd == STDOUT_FILENO || fd == STDERR_FILENO ||
           fcntl(fd, F_GETFL) & O_DSYNC; // of which O_SYNC has the bit, too
}

// A child of vfork() or _Fork() has this memory, or a copy of it, and no part in the heap.
static bool may_hold(void) {
    return pm_phase() == PM_RUNNING && !pm_nested() &&
           (!pm_heap_on_media() || pm_heap.super->state.owner_pid == (uint64_t)getpid());
}

// At the end of the program there is a commit in any case, and stdio writes the rest after it.
static bool may_commit(void) { return pm_heap_is_journaled() && may_hold(); }

static bool leaves(const struct pm_call *call) {
    return call->kind == PM_CALL_TELLS || (call->kind == PM_CALL_SAYS && is_heard(call->fd));
}

// Only a wait, or something that is said, shows that the program has set itself up.
void pm_trigger_shows(const struct pm_call *call) {
    int saved = errno;
    if (call->kind == PM_CALL_WAITS || leaves(call) ||
        (call->kind == PM_CALL_READS && waits_for_data(call->fd)))
        pm_replaced_check();
    errno = saved;
}

// What waits in the outbox leaves before the program waits, or says something else.
static void cover(const struct pm_call *call) {
    bool out = leaves(call);
    bool waits = atomic_load(&pm_outbox_count) &&
                 (out || call->kind == PM_CALL_WAITS ||
                  (call->kind == PM_CALL_READS && waits_for_data(call->fd)));
    if ((out || waits) && may_commit()) {
        if (out)
            pm_commits_cover(pm_commits_instants());
        if (waits)
            pm_outbox_flush();
    }
}

bool pm_trigger_enter(struct pm_call *call) {
    if (call->said && pm_outbox_on && may_commit() && pm_outbox_take(call))
        return true;
    int saved = errno;
    if (!pm_late_awaited && !is_of_mode())
        pm_triggers_on = false; // only late roots wanted these calls
    bool idle = pm_commits_mode() == PM_COMMITS_IDLE;
    bool late = pm_late_awaited && may_hold();
    if (pm_commits_mode() == PM_COMMITS_OUTPUT)
        cover(call);
    bool reads = call->kind == PM_CALL_READS;
    if (reads && (idle || late))
        call->kind = waits_for_data(call->fd) ? PM_CALL_WAITS : PM_CALL_OTHER;
    if (call->kind == PM_CALL_WAITS && late && !(reads && asks_the_kernel(call->fd)))
        pm_late_enter(call);
    if (call->kind == PM_CALL_WAITS && idle)
        pm_idle_enter(may_commit());
    errno = saved;
    return false;
}

void pm_trigger_found(const struct pm_call *call) {
    int saved = errno;
    if (pm_late_awaited && may_hold())
        pm_late_enter(call);
    errno = saved;
}

void pm_trigger_leave(const struct pm_call *call) {
    if (call->kind == PM_CALL_WAITS && pm_commits_mode() == PM_COMMITS_IDLE)
        pm_idle_leave();
}
