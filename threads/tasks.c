// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/os.h"
#include "base/os_file.h"
#include "base/proc.h"
#include "thread_list.h"

struct listing {
    pid_t self;
    bool (*each)(pid_t id, void *arg);
    void *arg;
};

static bool visit(pid_t id, void *arg) {
    const struct listing *list = arg;
    bool other = id > 0 && (size_t)id < PM_TASKS && id != list->self && !pm_os_is_own((uint32_t)id);
    return !other || list->each(id, list->arg);
}

static bool visit_name(const char *name, void *arg) { return visit(atoi(name), arg); }

bool pm_tasks_each_other_until(bool (*each)(pid_t id, void *arg), void *arg) {
    struct listing list = {.self = (pid_t)syscall(SYS_gettid), .each = each, .arg = arg};
    int fd = pm_proc_take(PM_PROC_TASKS);
    if (fd < 0)
        return pm_thread_list_each(visit, &list);
    bool good = pm_proc_each_name(fd, visit_name, &list);
    pm_proc_give_back(fd);
    return good;
}

struct all {
    void (*each)(pid_t id, void *arg);
    void *arg;
};

static bool go_on(pid_t id, void *arg) {
    const struct all *all = arg;
    all->each(id, all->arg);
    return true;
}

bool pm_tasks_each_other(void (*each)(pid_t id, void *arg), void *arg) {
    struct all all = {each, arg};
    return pm_tasks_each_other_until(go_on, &all);
}

// The kernel counts a directory for each, beside the two that every directory has.
size_t pm_tasks_count(void) {
    struct stat st;
    if (syscall(SYS_newfstatat, AT_FDCWD, "/proc/self/task", &st, 0) != 0 || st.st_nlink < 2)
        return 0;
    return (size_t)st.st_nlink - 2;
}

static uint64_t number_behind(const char *text, const char *name, int base) {
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, base) : 0;
}

// Of the thread that asks: the first one may have ended, and then shows nothing of this.
bool pm_tasks_look(struct pm_tasks_state *state) {
    char text[4096];
    pm_proc_kept_text(PM_PROC_STATUS, text, sizeof text);
    state->threads = number_behind(text, "\nThreads:\t", 10);
    state->ignored = number_behind(text, "\nSigIgn:\t", 16);
    state->caught = number_behind(text, "\nSigCgt:\t", 16);
    return state->threads && strstr(text, "\nSigCgt:\t");
}

// Where /proc is not seen nothing in it is there, although the thread may be.
bool pm_task_read(pid_t id, const char *file, char *text, size_t len, bool *gone) {
    char path[48];
    snprintf(path, sizeof path, "self/task/%d/%s", (int)id, file);
    ssize_t got = pm_proc_text(path, text, len);
    *gone = got < 0 && ((errno == ENOENT && pm_thread_has_ended(id)) || errno == ESRCH);
    return got > 0;
}

char pm_task_state(pid_t id, bool *gone) {
    char text[256];
    const char *at = pm_task_read(id, "stat", text, sizeof text, gone) ? strrchr(text, ')') : NULL;
    return at && at[1] ? at[2] : '\0';
}

bool pm_task_sleeps(pid_t id) {
    bool gone;
    char state = pm_task_state(id, &gone);
    return state == 'S' || (!state && gone);
}

bool pm_task_is_dead(pid_t id) {
    char text[256];
    bool gone;
    if (pm_task_read(id, "stat", text, sizeof text, &gone))
        return pm_os_stat_number(text, PM_STAT_FLAGS) & (PM_STAT_EXITING | PM_STAT_IO_WORKER);
    return gone || (!pm_task_peek(id, &pm_proc_no_detour, text, 1, &gone) && gone);
}

// The kernel looks for the memory by the thread, which has none any more once it is exiting.
bool pm_task_peek(pid_t id, const void *at, void *to, size_t len, bool *gone) {
    struct iovec here = {to, len}, there = {(void *)(uintptr_t)at, len};
    *gone = false;
    if (atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed))
        return false;
    bool good = syscall(SYS_process_vm_readv, id, &here, 1, &there, 1, 0L) == (long)len;
    *gone = !good && errno == ESRCH;
    return good;
}
