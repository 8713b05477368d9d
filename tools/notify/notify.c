// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The program keeps its process id, which the manager takes for the service's. So it is this
// process that is another one: it belongs to init, is in a session of its own, and has no
// descriptor of the program's but standard error.
#include "notify.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "health.h"
#include "manager.h"
#include "seen.h"

enum {
    LOOK_MS = 10,        // while the program starts,
    LATER_MS = 200,      // and after the first seconds of that
    OFTEN_MS = 3000,     // so long
    STATUS_MS = 1000,    // between two lines that say how far it is
    EXTEND_US = 30000000 // how long a start may show no progress, at least
};

struct watcher {
    struct manager manager;
    pid_t pid;
    int process; // a pidfd, readable once the program has ended
    const char *name, *healthy;
    uint64_t begun, told; // ms
    enum seen_stage stage;
    uint64_t done;
};

static const char *percent(char text[16], const struct seen *seen) {
    uint64_t share = seen->total ? seen->done * 100 / seen->total : 0;
    snprintf(text, 16, "%u%%", (unsigned)(share < 100 ? share : 100)); // `total` is an estimate
    return text;
}

static void tell_progress(struct watcher *w, const struct seen *seen) {
    static const char *const doing[] = {
        [SEEN_NOTHING] = "starting",
        [SEEN_BEGINS] = "opening the heap",
        [SEEN_MARKS] = "recovering the heap: marking, ",
        [SEEN_SWEEPS] = "recovering the heap: sweeping, ",
        [SEEN_LATE] = "late roots wait until the program is idle",
        [SEEN_READY] = "waiting for --healthy",
    };
    char share[16] = "", extend[48] = "";
    uint64_t now = pm_os_now_ms();
    bool moved = seen->stage != w->stage || seen->done != w->done;
    if (!moved || (seen->stage == w->stage && now - w->told < STATUS_MS) ||
        (seen->stage == SEEN_READY && !w->healthy))
        return;
    if (seen->stage == SEEN_MARKS || seen->stage == SEEN_SWEEPS) {
        percent(share, seen);
        snprintf(extend, sizeof extend, "\nEXTEND_TIMEOUT_USEC=%d", EXTEND_US);
    }
    manager_tell(&w->manager, "STATUS=%s%s%s", doing[seen->stage], share, extend);
    w->stage = seen->stage;
    w->done = seen->done;
    w->told = now;
}

static void sleep_or_end(const struct watcher *w, uint64_t ms) {
    struct pollfd end = {.fd = w->process, .events = POLLIN};
    if (poll(&end, 1, (int)ms) > 0)
        _exit(0); // the manager knows better than we do how it ended
}

static bool is_healthy(const struct watcher *w, uint64_t ms) {
    return !w->healthy || health_ask(w->healthy, w->process, ms);
}

static void await_ready(struct watcher *w) {
    for (;;) {
        struct seen seen;
        uint64_t spent = pm_os_now_ms() - w->begun;
        if (!seen_look(w->pid, w->name, &seen)) {
            int error = errno;
            sleep_or_end(w, LOOK_MS);
            if (error == ESRCH) // it is just ending
                continue;
            pm_say("--notify: process %d cannot be looked at (%s), so whether it is ready is not "
                   "known; it is called ready all the same",
                   (int)w->pid, strerror(error));
            seen = (struct seen){.stage = SEEN_READY, .heap = true};
        }
        tell_progress(w, &seen);
        if (seen.stage == SEEN_READY && is_healthy(w, HEALTH_READY_MS)) {
            manager_tell(&w->manager, "READY=1\nSTATUS=%s, %.2f s after the start",
                         seen.heap ? "its heap is ready" : "on volatile memory: nothing is kept",
                         (double)(pm_os_now_ms() - w->begun) / 1000);
            return;
        }
        sleep_or_end(w, spent < OFTEN_MS ? LOOK_MS : LATER_MS);
    }
}

static void keep_alive(const struct watcher *w) {
    uint64_t each = w->manager.watchdog_us / 4000; // ms: so that two such waits are half of it
    if (each == 0)
        for (;;)
            sleep_or_end(w, (uint64_t)INT32_MAX);
    for (;;) {
        if (health_runs(w->pid) && is_healthy(w, each))
            manager_tell(&w->manager, "WATCHDOG=1");
        sleep_or_end(w, each);
    }
}

// Descriptors that the program inherits must not stay open for us: someone may wait for their end.
static void part_from(struct watcher *w) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    setsid();
    prctl(PR_SET_NAME, "pmalloc-notify", 0, 0, 0);
    signal(SIGPIPE, SIG_IGN);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0 || chdir("/"))
        _exit(1);
    // Two descriptors stay.
    int low = w->manager.socket < w->process ? w->manager.socket : w->process;
    int high = w->manager.socket < w->process ? w->process : w->manager.socket;
    if (low > 3)
        syscall(SYS_close_range, 3u, (unsigned)low - 1, 0);
    if (high > low + 1)
        syscall(SYS_close_range, (unsigned)low + 1, (unsigned)high - 1, 0);
    syscall(SYS_close_range, (unsigned)high + 1, ~0u, 0);
}

// The watcher looks when the program lets it: where ptrace is restricted to descendants (Yama),
// that must be said first. So it waits for the end of `go`.
__attribute__((noreturn)) static void watch(struct watcher *w, int go) {
    char nothing;
    while (read(go, &nothing, 1) < 0 && errno == EINTR)
        ;
    part_from(w);
    await_ready(w);
    keep_alive(w);
    _exit(0);
}

// Makes a process that belongs to init, and returns its number; -1 with errno.
static pid_t make_watcher(struct watcher *w, const int go[2], const int number[2]) {
    pid_t watcher = -1, child = fork();
    int status = -1;
    if (child == 0) {
        pid_t own = fork();
        if (own != 0)
            _exit(own < 0 || write(number[1], &own, sizeof own) != sizeof own);
        close(go[1]);
        watch(w, go[0]);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0 &&
        read(number[0], &watcher, sizeof watcher) == sizeof watcher)
        return watcher;
    errno = EAGAIN; // that of a fork, which may have been another process'
    return -1;
}

static pid_t begin(struct watcher *w) {
    int go[2], number[2];
    if (pipe2(go, O_CLOEXEC) != 0 || pipe2(number, O_CLOEXEC) != 0)
        return -1;
    w->process = (int)syscall(SYS_pidfd_open, w->pid, 0);
    pid_t watcher = w->process < 0 ? -1 : make_watcher(w, go, number);
    if (watcher > 0)
        prctl(PR_SET_PTRACER, (unsigned long)watcher, 0, 0, 0); // unknown without Yama
    return watcher; // all of these descriptors end when the program is executed
}

int notify_begin(const char *name, const char *healthy, struct pm_error *err) {
    struct watcher w = {.pid = getpid(), .name = name ? name : "", .healthy = healthy};
    struct seen seen;
    int status = manager_find(&w.manager, err);
    if (status != PM_OK || w.manager.socket < 0)
        return status;
    if (!seen_look(w.pid, "", &seen))
        return pm_fail(err, PM_OPERATIONAL,
                       "--notify: /proc/%d/mem cannot be opened: %s; it tells when the program is "
                       "ready. Mount /proc, or use Type=exec without --notify",
                       (int)w.pid, strerror(errno));
    w.begun = pm_os_now_ms();
    if (begin(&w) < 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "--notify: no process can be made that watches: %s; see `ulimit -u` and "
                       "TasksMax=",
                       strerror(errno));
    return PM_OK;
}
