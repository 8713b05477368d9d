// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "heap_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "media/backing/fixed.h"

// Reads from the superblock which process has the heap, for the message, and so that descendants of
// the owner can tell.
static struct pm_holder find_holder(void) {
    struct pm_state state;
    bool known = pm_fixed_read_state(pm_heap.dir_fd, &state);
    int fd = known ? -1
                   : openat(pm_heap.dir_fd, pm_heap.super_file.name,
                            O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    known |= fd >= 0 && pread(fd, &state, sizeof state, offsetof(struct pm_super_file, state)) ==
                            (ssize_t)sizeof state;
    if (fd >= 0)
        close(fd);
    return known ? (struct pm_holder){.pid = (pid_t)state.owner_pid, .start = state.owner_start}
                 : (struct pm_holder){0};
}

// A process that has inherited the owner's descriptors keeps the lock.
bool pm_holder_is_gone(const struct pm_holder *holder) {
    return holder->pid > 0 && holder->start && pm_os_start_time(holder->pid) != holder->start &&
           pm_os_start_time(getpid());
}

// Whether all who hold the lock share it: they look at the heap, or have borrowed it.
static bool is_lent(int fd) { return flock(fd, LOCK_SH | LOCK_NB) == 0 && flock(fd, LOCK_UN) == 0; }

static void note_others(int fd, struct pm_holder *holder) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return;
    holder->other = pm_os_who_has_open(st.st_dev, st.st_ino);
    holder->mapped = !S_ISDIR(st.st_mode);
}

static int say_lent(int fd, struct pm_error *err) {
    pm_fail(err, PM_OPERATIONAL,
            "%s is in use by processes that only read it (by PMALLOC_OPEN=private or in a tool; "
            "`fuser -v` on the directory names them); wait for them to end, set PMALLOC_BUSY=wait, "
            "or use another heap",
            pm_heap.dir);
    err->why = PM_WHY_LENT;
    err->holder = find_holder();
    note_others(fd, &err->holder);
    return err->status;
}

// The lock is another process's. Says whose, as far as that is known.
static int say_busy(int fd, struct pm_error *err) {
    const char *what_now = "wait for it to end, set PMALLOC_BUSY=wait, or use another heap";
    char who[32] = "another process";
    struct pm_holder holder = find_holder();
    bool gone = pm_holder_is_gone(&holder);
    if (gone || holder.pid <= 0)
        note_others(fd, &holder);
    pid_t pid = gone || holder.pid <= 0 ? holder.other : holder.pid;
    if (pid > 0)
        snprintf(who, sizeof who, "process %d", (int)pid);
    if (!gone)
        pm_fail(err, PM_OPERATIONAL, "%s is in use by %s; %s", pm_heap.dir, who, what_now);
    else
        pm_fail(err, PM_OPERATIONAL,
                "%s is in use by %s, although its last owner, process %d, has ended; this may be a "
                "child of that process (by vfork or clone), a program that is just starting, or "
                "one in another PID namespace (`fuser -v` on the directory names it); %s",
                pm_heap.dir, who, (int)holder.pid, what_now);
    err->why = PM_WHY_BUSY;
    err->holder = holder;
    return err->status;
}

int pm_dir_lock(int fd, enum pm_open_mode mode, bool wait, struct pm_error *err) {
    int operation = mode == PM_OPEN_READONLY ? LOCK_SH : LOCK_EX;
    while (mode < PM_OPEN_LOOK && flock(fd, operation | (wait ? 0 : LOCK_NB)) != 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return pm_fail(err, PM_OPERATIONAL, "%s: cannot be locked (flock): %s", pm_heap.dir,
                           pm_strerror(errno));
        return operation == LOCK_EX && is_lent(fd) ? say_lent(fd, err) : say_busy(fd, err);
    }
    return PM_OK;
}
