// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "geometry.h"
#include "os_file.h"
#include "own_limit.h"

extern char **environ;

// 12 TiB up to where heaps lie, clear of what sanitizers, Go and Java choose for themselves. The
// tables lie in the first of them, so what comes and goes begins anew behind these.
#define PLACES PM_OS_PLACES
#define PLACES_AGAIN 0x380000000000u
#define PLACES_END 0x400000000000u

void *pm_os_place(size_t bytes) {
    static _Atomic uint64_t next = PLACES;
    uint64_t align = bytes < PM_HUGE_PAGE ? PM_PAGE_SIZE : PM_HUGE_PAGE;
    uint64_t take = ((bytes + align - 1) & ~(align - 1)) + (align - PM_PAGE_SIZE);
    uint64_t at = atomic_fetch_add_explicit(&next, take, memory_order_relaxed);
    if (take > PLACES_END - PLACES_AGAIN)
        return NULL;
    if (at + take > PLACES_END) {
        at = PLACES_AGAIN;
        atomic_store_explicit(&next, at + take, memory_order_relaxed);
    }
    return (void *)((at + align - 1) & ~(align - 1));
}

void *pm_os_reserve(size_t bytes) {
    void *p = mmap(pm_os_place(bytes), bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void *pm_os_reserve_unused(size_t bytes) {
    void *p = mmap(pm_os_place(bytes), bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool pm_os_advise(void *at, size_t len, int advice) {
    int status;
    do
        status = madvise(at, len, advice);
    while (status != 0 && errno == EINTR);
    return status == 0;
}

static bool limit_fds(const struct rlimit *limit) {
    return syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, limit, NULL) == 0;
}

// Above the program's limit, so that it can open as many as it could. The kernel's table grows to
// the highest number used.
#define HIGHEST ((rlim_t)32 << 10)

static int above_limit(int fd, const struct rlimit *limit) {
    struct rlimit more = {limit->rlim_cur + 64, limit->rlim_max};
    if (limit->rlim_cur > HIGHEST || limit->rlim_cur == limit->rlim_max)
        return -1;
    if (more.rlim_cur > more.rlim_max)
        more.rlim_cur = more.rlim_max;
    if (!limit_fds(&more))
        return -1;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, (int)limit->rlim_cur);
    limit_fds(limit);
    return high;
}

_Atomic int pm_os_fd_lowest = INT_MAX;

// Two threads may store at once: then the higher number may stay, until the next one.
static void note_lowest(int fd) {
    if (fd < atomic_load_explicit(&pm_os_fd_lowest, memory_order_relaxed))
        atomic_store_explicit(&pm_os_fd_lowest, fd, memory_order_relaxed);
}

int pm_os_fd_high(int fd) {
    struct rlimit limit;
    if (fd < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return fd;
    int saved = errno;
    int high = above_limit(fd, &limit);
    rlim_t top = limit.rlim_cur > 1024 ? 1024 : limit.rlim_cur;
    if (high < 0)
        high = top > 64 ? fcntl(fd, F_DUPFD_CLOEXEC, (int)top - 32) : -1;
    errno = saved;
    if (high < 0)
        return fd;
    note_lowest(high);
    close(fd);
    return high;
}

static bool within(int which, uint64_t size, int error) {
    struct rlimit limit;
    if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || size <= limit.rlim_cur)
        return true;
    errno = error;
    return false;
}

bool pm_os_file_size(uint64_t size) { return within(RLIMIT_FSIZE, size, EFBIG); }

bool pm_os_address_space(uint64_t bytes) { return pm_address_limit_allows(bytes); }

// Calls `fn` for each line of /proc/PID/maps until it returns false.
static void each_map(const char *pid, bool (*fn)(const char *line, void *arg), void *arg) {
    char path[32], buffer[8192];
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    size_t have = 0;
    ssize_t got;
    bool on = true;
    while (on && (got = read(fd, buffer + have, sizeof buffer - 1 - have)) > 0) {
        have += (size_t)got;
        buffer[have] = '\0';
        char *line = buffer, *end;
        for (; on && (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            on = fn(line, arg);
        }
        have -= (size_t)(line - buffer);
        memmove(buffer, line, have);
    }
    close(fd);
}

struct who {
    uint64_t base, len;
    char *out;
    size_t outlen;
};

static bool find_overlap(const char *line, void *arg) {
    const struct who *who = arg;
    char *rest;
    uint64_t from = strtoull(line, &rest, 16);
    uint64_t to = *rest == '-' ? strtoull(rest + 1, NULL, 16) : 0;
    if (from >= who->base + who->len || to <= who->base)
        return true;
    snprintf(who->out, who->outlen, "%s", line);
    return false;
}

void pm_os_who_maps(uint64_t base, uint64_t len, char *out, size_t outlen) {
    struct who who = {base, len, out, outlen};
    out[0] = '\0';
    each_map("thread-self", find_overlap, &who);
}

uint64_t pm_os_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t pm_os_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

unsigned pm_os_cores(void) {
    cpu_set_t set; // fails with EINVAL on machines of more than 1024 cores: 64 arenas do there
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 64;
    int cores = CPU_COUNT(&set);
    return cores < 1 ? 1u : (unsigned)cores;
}

// Reads /proc/PID/stat and returns the end of the program's name in it. The name may have any
// characters; the last ')' ends it. NULL: it cannot be read.
static char *stat_text(pid_t pid, char *text, size_t size) {
    char path[48];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    ssize_t got = read(fd, text, size - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return strrchr(text, ')');
}

uint64_t pm_os_stat_number(const char *stat, unsigned field) {
    const char *at = strrchr(stat, ')');
    for (unsigned i = 2; at && i < field; i++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

// The same of a process. 0: it cannot be read.
static uint64_t stat_field(pid_t pid, unsigned number) {
    char text[1024], *at = stat_text(pid, text, sizeof text);
    return at ? pm_os_stat_number(at, number) : 0;
}

uint64_t pm_os_start_time(pid_t pid) { return stat_field(pid, 22); }

char pm_os_state(pid_t pid) {
    char text[1024], *at = stat_text(pid, text, sizeof text);
    return at && at[1] ? at[2] : '\0';
}

// Reads a thread's `stat` or `status` in /proc into `text`; "": it cannot be read. False: the
// thread has gone.
static bool read_task(pid_t pid, const char *task, const char *file, char *text, size_t size) {
    char path[320];
    snprintf(path, sizeof path, "/proc/%d/task/%s/%s", (int)pid, task, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);
    bool there = got >= 0 || (errno != ENOENT && errno != ESRCH);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    return there;
}

// Whether SIGKILL is in the set of signals in this line of a `status` file.
static bool kill_pending(const char *status, const char *line) {
    const char *at = strstr(status, line);
    return at && strtoull(at + strlen(line), NULL, 16) >> (SIGKILL - 1) & 1;
}

static bool task_is_ending(pid_t pid, const char *task) {
    char text[4096];
    if (!read_task(pid, task, "stat", text, sizeof text))
        return true;
    if (pm_os_stat_number(text, PM_STAT_FLAGS) & (PM_STAT_EXITING | PM_STAT_SIGNALED))
        return true;
    if (!read_task(pid, task, "status", text, sizeof text))
        return true;
    return kill_pending(text, "\nSigPnd:") || kill_pending(text, "\nShdPnd:");
}

struct tasks {
    pid_t pid;
    unsigned living, ending;
};

static bool count_task(const char *task, void *arg) {
    struct tasks *tasks = arg;
    if (task_is_ending(tasks->pid, task))
        tasks->ending++;
    else
        tasks->living++;
    return !tasks->living;
}

bool pm_os_is_ending(pid_t pid) {
    char path[32];
    struct tasks tasks = {.pid = pid};
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    pm_os_each_name(fd, count_task, &tasks);
    close(fd);
    return tasks.ending && !tasks.living;
}

pid_t pm_os_proc_pid(void) {
    char text[32];
    ssize_t len = readlink("/proc/self", text, sizeof text - 1);
    text[len > 0 ? len : 0] = '\0';
    return len > 0 ? (pid_t)strtol(text, NULL, 10) : getpid();
}

pid_t pm_os_newest_child(void) {
    char text[4096];
    ssize_t got, have = 0;
    int fd = open("/proc/thread-self/children", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    // The file has the ids by age, each followed by a space. The last id may span two blocks, so
    // the end of each block is kept.
    while ((got = read(fd, text + have, sizeof text - 1 - (size_t)have)) > 0) {
        have += got;
        if (have > 32) {
            memmove(text, text + have - 32, 32);
            have = 32;
        }
    }
    close(fd);
    while (have > 0 && text[have - 1] == ' ')
        have--;
    text[have] = '\0';
    char *last = strrchr(text, ' ');
    return (pid_t)strtol(last ? last + 1 : text, NULL, 10);
}

_Atomic uint32_t pm_os_own_thread, pm_os_looker;

bool pm_os_is_own(uint32_t thread) {
    return thread && (thread == atomic_load_explicit(&pm_os_own_thread, memory_order_acquire) ||
                      thread == atomic_load_explicit(&pm_os_looker, memory_order_acquire));
}

unsigned pm_os_own_count(void) {
    return (atomic_load_explicit(&pm_os_own_thread, memory_order_acquire) != 0) +
           (atomic_load_explicit(&pm_os_looker, memory_order_acquire) != 0);
}

static bool one_task(void) {
    struct stat st;
    return stat("/proc/self/task", &st) == 0 && st.st_nlink == 3 + pm_os_own_count();
}

static bool count_living(const char *task, void *arg) {
    struct tasks *tasks = arg;
    char text[1024];
    if (pm_os_is_own((uint32_t)strtoul(task, NULL, 10)))
        return true;
    read_task(tasks->pid, task, "stat", text, sizeof text);
    tasks->living += !(pm_os_stat_number(text, PM_STAT_FLAGS) & PM_STAT_EXITING);
    return tasks->living < 2;
}

static bool one_lives(void) {
    struct tasks tasks = {.pid = pm_os_proc_pid()};
    int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    pm_os_each_name(fd, count_living, &tasks);
    close(fd);
    return tasks.living == 1;
}

// A thread that somebody has joined may still be listed for a moment. If it goes while the list is
// read, the last look sees that.
bool pm_os_one_thread(void) { return one_task() || one_lives() || one_task(); }

// In /proc. A parent in another PID namespace is 0 to getppid().
static pid_t parent(void) {
    pid_t pid = (pid_t)stat_field(pm_os_proc_pid(), 4);
    return pid ? pid : getppid();
}

bool pm_os_is_ancestor(pid_t pid, uint64_t start) {
    int depth = 0;
    for (pid_t at = parent(); at > 0 && depth < 64; at = (pid_t)stat_field(at, 4), depth++)
        if (at == pid)
            return pm_os_start_time(at) == start;
    return false;
}

struct borrower {
    const char *name;
    uint64_t ino;
    bool found;
};

// FROM-TO rw-p OFFSET DEVICE INODE PATH
static bool find_borrower(const char *line, void *arg) {
    struct borrower *b = arg;
    unsigned long offset = 1, ino = 0;
    char mode[8] = "";
    const char *slash = strrchr(line, '/');
    if (!slash || strcmp(slash + 1, b->name) != 0)
        return true;
    int fields = sscanf(line, "%*s %7s %lx %*s %lu", mode, &offset, &ino);
    b->found = fields == 3 && !strcmp(mode, "rw-p") && offset == 0 && ino == b->ino;
    return !b->found;
}

bool pm_os_ancestor_maps(const char *name, uint64_t ino) {
    struct borrower b = {name, ino, false};
    int depth = 0;
    for (pid_t at = parent(); at > 0 && !b.found && depth < 64;
         at = (pid_t)stat_field(at, 4), depth++) {
        char pid[16];
        snprintf(pid, sizeof pid, "%d", (int)at);
        each_map(pid, find_borrower, &b);
    }
    return b.found;
}

bool pm_os_program_name(char *out, size_t outlen) {
    char link[4096];
    const char *path = link;
    ssize_t len = readlink("/proc/self/exe", link, sizeof link - 1);
    link[len > 0 ? len : 0] = '\0';
    if (len < 0 && errno == ENOENT) // /proc is not mounted
        path = (const char *)getauxval(AT_EXECFN);
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash ? slash + 1 : path ? path : "";
    const char *said = *name ? name : "unknown";
    size_t size = strnlen(said, outlen - 1); // not snprintf(): each start comes here
    memcpy(out, said, size);
    out[size] = '\0';
    return *name != '\0';
}

char *const *pm_os_environ(void) {
    if (environ)
        return environ;
    enum { TEXT = 4 << 20, POINTERS = 65536 };
    char **list = pm_os_reserve(TEXT + POINTERS * sizeof *list);
    int fd = list ? open("/proc/self/environ", O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return NULL;
    char *text = (char *)(list + POINTERS);
    size_t have = 0, count = 0;
    ssize_t got;
    while (have < TEXT - 1 && (got = read(fd, text + have, TEXT - 1 - have)) > 0)
        have += (size_t)got;
    close(fd);
    for (size_t at = 0; at < have && count < POINTERS - 1; at += strlen(text + at) + 1)
        list[count++] = text + at;
    return list;
}
