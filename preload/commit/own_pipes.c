// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "own_pipes.h"

#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/os_file.h"
#include "base/proc.h"

#define MOST 16 // pipes that hold something: more are not looked at

struct pipes {
    uint64_t full[MOST]; // their numbers
    unsigned count;
    bool news;
};

// What the descriptor is, as /proc says it: "pipe:[17]".
static bool kind_of(const char *number, char *to, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/thread-self/fd/%.16s", number);
    ssize_t length = readlink(path, to, size - 1);
    to[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static bool is_pipe(const char *kind, uint64_t *number) {
    if (strncmp(kind, "pipe:[", 6) != 0)
        return false;
    *number = strtoull(kind + 6, NULL, 10);
    return true;
}

// Whether the count of an eventfd is not 0.
static bool counts(const char *number) {
    struct pollfd look = {.fd = atoi(number), .events = POLLIN};
    const struct timespec at_once = {0, 0};
    return !atomic_load_explicit(&pm_proc_no_detour, memory_order_relaxed) &&
           syscall(SYS_ppoll, &look, 1, &at_once, NULL, 0) == 1 && look.revents & POLLIN;
}

static int access_of(const char *name) {
    int flags = fcntl(atoi(name), F_GETFL);
    return flags < 0 ? -1 : flags & O_ACCMODE;
}

// A writer's end tells as well how much there is to read: of an answer that others have not read.
static bool find_full(const char *name, void *arg) {
    struct pipes *p = arg;
    char kind[64];
    uint64_t number;
    int bytes = 0;
    if (!kind_of(name, kind, sizeof kind))
        return true;
    if (strcmp(kind, "anon_inode:[eventfd]") == 0)
        p->news |= counts(name);
    else if (is_pipe(kind, &number) && p->count < MOST && access_of(name) == O_RDONLY &&
             ioctl(atoi(name), FIONREAD, &bytes) == 0 && bytes > 0)
        p->full[p->count++] = number;
    return !p->news;
}

static bool find_writer(const char *name, void *arg) {
    struct pipes *p = arg;
    char kind[64];
    uint64_t number;
    if (!kind_of(name, kind, sizeof kind) || !is_pipe(kind, &number) || access_of(name) != O_WRONLY)
        return true;
    for (unsigned i = 0; i < p->count; i++)
        p->news |= p->full[i] == number;
    return !p->news;
}

bool pm_own_pipes_have_news(void) {
    struct pipes p = {.count = 0};
    int fd = pm_proc_open_mine("fd", O_DIRECTORY);
    if (fd < 0)
        return false;
    pm_proc_each_name(fd, find_full, &p);
    if (!p.news && p.count > 0 && pm_proc_call(SYS_lseek, fd, 0, SEEK_SET, 0) == 0)
        pm_proc_each_name(fd, find_writer, &p);
    pm_proc_close(fd);
    return p.news;
}
