// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "own_fds.h"

#include <stdatomic.h>
#include <stddef.h>

#include "base/bare_thread.h"
#include "base/event_log.h"
#include "base/os.h"
#include "base/os_file.h"
#include "base/proc.h"
#include "media/backing/dir_held.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/backing/work_copy.h"
#include "media/commit/stored_pages.h"
#include "media/heap.h"

// Younger than the oldest headers that this is built with.
#define NR_CLOSE_RANGE 436
#define CLOSES_ON_EXEC 4 // CLOSE_RANGE_CLOEXEC

// Calls `fn` for each descriptor that is ours, whatever the program has done to its number. `only`:
// for that number alone, or -1.
static void each(int only, void (*fn)(int fd, void *arg), void *arg) {
    pm_event_log_fd(fn, arg);
    for (size_t i = 0; i < pm_heap_file_count() && pm_heap_is_held(); i++) {
        const struct pm_file *file = pm_heap_file(&pm_heap_files[i]);
        bool asked = only < 0 || file->fd == only;
        if (asked && file->fd > 0 && pm_file_is_ours(file)) // 0: it was never opened
            fn(file->fd, arg);
        if (file->fd > 0 && pm_heap_files[i].holds == PM_FILE_DATA)
            fn(pm_work_fd(file), arg);
    }
    if (!pm_heap_is_held())
        return;
    pm_proc_each_kept(only, fn, arg);
    if (pm_stored_fd() >= 0)
        fn(pm_stored_fd(), arg);
    if ((only < 0 || pm_heap.dir_fd == only) && pm_dir_is_held())
        fn(pm_heap.dir_fd, arg);
    for (PM_EACH_MEDIUM(m)) {
        if ((only < 0 || m->lock == only) && pm_os_fd_is(m->lock, m->dev, m->ino))
            fn(m->lock, arg);
        if ((only < 0 || m->gate == only) && pm_os_fd_is(m->gate, m->gate_dev, m->gate_ino))
            fn(m->gate, arg);
    }
}

struct next {
    unsigned from, first; // the lowest one from there on
    bool found;
};

static void lower(int fd, void *arg) {
    struct next *next = arg;
    if (fd >= 0 && (unsigned)fd >= next->from && (!next->found || (unsigned)fd < next->first)) {
        next->first = (unsigned)fd;
        next->found = true;
    }
}

static long close_raw(unsigned from, unsigned to, int flags) {
    return pm_bare_call(NR_CLOSE_RANGE, from, to, flags, 0);
}

long pm_close_range(unsigned from, unsigned to, int flags) {
    long result = 0;
    if (flags & CLOSES_ON_EXEC || from > to || !(pm_heap_is_held() || pm_event_log_has_fd()))
        return close_raw(from, to, flags);
    for (bool more = true; more && result == 0;) {
        struct next next = {.from = from};
        each(-1, lower, &next);
        more = next.found && next.first < to;
        unsigned end = next.found && next.first <= to ? next.first : to;
        bool ours = next.found && next.first <= to;
        if (!ours || end > from)
            result = close_raw(from, ours ? end - 1 : end, flags);
        from = end + 1;
    }
    return result;
}

struct one {
    int fd;
    bool found;
};

static void compare(int fd, void *arg) {
    struct one *one = arg;
    one->found |= fd == one->fd;
}

bool pm_fd_is_own(int fd) {
    struct one one = {.fd = fd};
    if (fd < atomic_load_explicit(&pm_os_fd_lowest, memory_order_relaxed) ||
        !(pm_heap_is_held() || pm_event_log_has_fd()))
        return false;
    each(fd, compare, &one);
    return one.found;
}
