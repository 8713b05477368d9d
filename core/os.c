// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

void *pm_os_reserve(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool pm_os_advise(void *at, size_t len, int advice) {
    int status;
    do
        status = madvise(at, len, advice);
    while (status != 0 && errno == EINTR);
    return status == 0;
}

int pm_os_fd_high(int fd) {
    struct rlimit limit;
    if (fd < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return fd;
    int saved = errno;
    // The kernel's table grows to the highest number used, so stay modest where the limit is huge.
    rlim_t top = limit.rlim_cur > 1024 ? 1024 : limit.rlim_cur;
    int high = top > 64 ? fcntl(fd, F_DUPFD_CLOEXEC, (int)top - 32) : -1;
    errno = saved;
    if (high < 0)
        return fd;
    close(fd);
    return high;
}

bool pm_os_file_size(uint64_t size) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        size <= limit.rlim_cur)
        return true;
    errno = EFBIG;
    return false;
}

void pm_os_who_maps(uint64_t base, uint64_t len, char *out, size_t outlen) {
    out[0] = '\0';
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    char buffer[8192];
    size_t have = 0;
    ssize_t got;
    while ((got = read(fd, buffer + have, sizeof buffer - 1 - have)) > 0 && !out[0]) {
        have += (size_t)got;
        buffer[have] = '\0';
        char *line = buffer, *end;
        for (; (end = strchr(line, '\n')) != NULL; line = end + 1) {
            *end = '\0';
            char *rest;
            uint64_t from = strtoull(line, &rest, 16);
            uint64_t to = *rest == '-' ? strtoull(rest + 1, NULL, 16) : 0;
            if (from < base + len && to > base) {
                snprintf(out, outlen, "%s", line);
                break;
            }
        }
        have -= (size_t)(line - buffer);
        memmove(buffer, line, have);
    }
    close(fd);
}

uint64_t pm_os_now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

unsigned pm_os_cores(void) {
    cpu_set_t set; // larger machines fail with EINVAL; one arena a core stops paying long before
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 64;
    int cores = CPU_COUNT(&set);
    return cores < 1 ? 1u : (unsigned)cores;
}

// What follows the name in /proc/PID/stat, which may hold anything; NULL when it cannot be read.
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

// Field `number`, counted as proc(5) does, from 4 on; 0 when it cannot be read.
static uint64_t stat_field(pid_t pid, unsigned number) {
    char text[1024], *at = stat_text(pid, text, sizeof text);
    for (unsigned field = 2; at && field < number; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

uint64_t pm_os_start_time(pid_t pid) { return stat_field(pid, 22); }

char pm_os_state(pid_t pid) {
    char text[1024], *at = stat_text(pid, text, sizeof text);
    return at && at[1] ? at[2] : '\0';
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
    // Numbers, each followed by a space, by age: the last one may begin in the block before.
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

bool pm_os_one_thread(void) {
    struct stat st;
    return stat("/proc/self/task", &st) == 0 && st.st_nlink == 3;
}

int pm_os_is_ancestor(pid_t pid, uint64_t start) {
    int depth = 0;
    for (pid_t at = getppid(); at > 0 && depth < 64; at = (pid_t)stat_field(at, 4), depth++)
        if (at == pid)
            return pm_os_start_time(at) == start;
    return 0;
}

bool pm_os_program_name(char *out, size_t outlen) {
    char link[4096];
    const char *path = link;
    ssize_t len = readlink("/proc/self/exe", link, sizeof link - 1);
    link[len > 0 ? len : 0] = '\0';
    if (len < 0 && errno == ENOENT) // no /proc here
        path = (const char *)getauxval(AT_EXECFN);
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash ? slash + 1 : path ? path : "";
    snprintf(out, outlen, "%s", *name ? name : "unknown");
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
