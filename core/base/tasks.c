// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"
#include "os_file.h"

static int open_tasks(void) { return open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

struct listing {
    pid_t self;
    bool (*each)(pid_t id, void *arg);
    void *arg;
};

static bool visit(const char *name, void *arg) {
    const struct listing *list = arg;
    int id = atoi(name);
    pid_t own = (pid_t)atomic_load_explicit(&pm_os_own_thread, memory_order_acquire);
    bool other = id > 0 && (size_t)id < PM_TASKS && id != list->self && id != own;
    return !other || list->each(id, list->arg);
}

bool pm_tasks_each_other_until(bool (*each)(pid_t id, void *arg), void *arg) {
    struct listing list = {.self = (pid_t)syscall(SYS_gettid), .each = each, .arg = arg};
    int fd = open_tasks();
    if (fd < 0)
        return false;
    bool good = pm_os_each_name(fd, visit, &list);
    close(fd);
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

bool pm_task_read(pid_t id, const char *file, char *text, size_t len, bool *gone) {
    char path[48];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", (int)id, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, len - 1);
    *gone = got < 0 && errno == (fd < 0 ? ENOENT : ESRCH);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

bool pm_task_is_dead(pid_t id) {
    char text[256];
    bool gone;
    if (!pm_task_read(id, "stat", text, sizeof text, &gone))
        return gone;
    return pm_os_stat_number(text, PM_STAT_FLAGS) & PM_STAT_EXITING;
}
