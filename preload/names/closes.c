// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls that close or change descriptors. Answers that are to leave by them leave first
// (commit/outbox.h). The heap's descriptors stay open (process/own_fds.h): who closes all numbers
// that there may be does not mean them.
#include <asm/ioctls.h>
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include "commit/outbox.h"
#include "export.h"
#include "next.h"
#include "process/own_fds.h"

// Beside the headers' declarations, which older ones lack.
int pm_names_close_range(unsigned from, unsigned to, int flags) __asm__("close_range");
void pm_names_closefrom(int from) __asm__("closefrom");

#define CLOSES(type, failed, name, parameters, arguments, from, to)                                \
    EXPORT type pm_closes_##name parameters __asm__(#name);                                        \
    EXPORT type pm_closes_##name parameters {                                                      \
        static _Atomic(void *) known;                                                              \
        type(*next) parameters;                                                                    \
        *(void **)&next = pm_next(&known, #name);                                                  \
        if (!next)                                                                                 \
            return failed;                                                                         \
        unsigned place = pm_outbox_closing((unsigned)(from), (unsigned)(to));                      \
        type result = next arguments;                                                              \
        pm_outbox_closed(place);                                                                   \
        return result;                                                                             \
    }
CLOSES(int, -1, dup2, (int from, int fd), (from, fd), fd, fd)
CLOSES(int, -1, dup3, (int from, int fd, int flags), (from, fd, flags), fd, fd)
CLOSES(int, EOF, fclose, (FILE * stream), (stream), 0, ~0u)
CLOSES(int, -1, pclose, (FILE * stream), (stream), 0, ~0u)
CLOSES(FILE *, NULL, freopen, (const char *path, const char *mode, FILE *stream),
       (path, mode, stream), 0, ~0u)
CLOSES(FILE *, NULL, freopen64, (const char *path, const char *mode, FILE *stream),
       (path, mode, stream), 0, ~0u)
// An option may change what the kernel makes of bytes that it gets later (TCP_CORK, TCP_ULP).
CLOSES(int, -1, setsockopt, (int fd, int level, int name, const void *value, unsigned len),
       (fd, level, name, value, len), fd, fd)

// To the program they are not open. Were they closed, a thread of ours would have to open the file
// again, at the lowest free number for a moment: where the program closes that as well, and opens
// another file, ours would close that one.
EXPORT int pm_closes_close(int fd) __asm__("close");
EXPORT int pm_closes_close(int fd) {
    static _Atomic(void *) known;
    int (*next)(int);
    *(void **)&next = pm_next(&known, "close");
    if (!next)
        return -1;
    if (pm_fd_is_own(fd)) {
        errno = EBADF;
        return -1;
    }
    unsigned place = pm_outbox_closing((unsigned)fd, (unsigned)fd);
    int result = next(fd);
    pm_outbox_closed(place);
    return result;
}

// How much of what was written has not been read by the other end, and how much can be read.
typedef int ioctl_fn(int, unsigned long, void *);
EXPORT ioctl_fn pm_closes_ioctl __asm__("ioctl");
EXPORT int pm_closes_ioctl(int fd, unsigned long request, void *argument) {
    static _Atomic(void *) known;
    ioctl_fn *next;
    *(void **)&next = pm_next(&known, "ioctl");
    if (!next)
        return -1;
    if (request == TIOCOUTQ)
        pm_outbox_look_at((unsigned)fd, (unsigned)fd);
    if (request == FIONREAD) // of the program's own other end, maybe
        pm_outbox_look_at(0, ~0u);
    return next(fd, request, argument);
}

EXPORT int pm_names_close_range(unsigned from, unsigned to, int flags) {
    unsigned place = pm_outbox_closing(from, to);
    long result = pm_close_range(from, to, flags);
    pm_outbox_closed(place);
    if (result == 0)
        return 0;
    errno = (int)-result;
    return -1;
}

// An older kernel has no such call, and libc looks in /proc.
EXPORT void pm_names_closefrom(int from) {
    void (*by_libc)(int);
    unsigned first = from > 0 ? (unsigned)from : 0, place = pm_outbox_closing(first, ~0u);
    if (pm_close_range(first, ~0u, 0) == -ENOSYS) {
        *(void **)&by_libc = dlsym(RTLD_NEXT, "closefrom");
        if (by_libc)
            by_libc(from);
    }
    pm_outbox_closed(place);
}
