// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that is killed, or turns into another by exec, leaves its default heap and the memory in it behind. Nobody can use
// it any more, so every start on a default heap takes one such heap away: one only, whichever chance says, to
// cost the same however many programs run.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "choice.h"
#include "heap.h"

// The names in a piece of directory that the kernel has filled in; the nth of them, or how many there are.
static const char *nth_entry(const char *buffer, long got, unsigned n, const char *own,
                             unsigned *count) {
    *count = 0;
    for (long at = 0; at < got;) {
        uint16_t length;
        memcpy(&length, buffer + at + 16, sizeof length);
        const char *name = buffer + at + 19;
        if (*name != '.' && strcmp(name, own) != 0 && (*count)++ == n)
            return name;
        at += length;
    }
    return NULL;
}

void pm_choice_tidy(int fd, const char *parent, const char *own) {
    char buffer[4096] __attribute__((aligned(8))), dir[512];
    int saved = errno;
    long got = syscall(SYS_getdents64, fd, buffer, sizeof buffer);
    unsigned count;
    nth_entry(buffer, got, UINT32_MAX, own, &count);
    // Process numbers count up, so a row of starts looks at all.
    const char *name = count ? nth_entry(buffer, got, (unsigned)getpid() % count, own, &count) : "";
    struct pm_error err;
    // Opened as its owner would, under its locks: what is in use is busy, what cannot be understood is left alone.
    if (*name && snprintf(dir, sizeof dir, "%s/%s", parent, name) < (int)sizeof dir &&
        pm_heap_open(dir, PM_OPEN_DEAD, false, &err) == PM_OK) {
        if (!pm_heap_has_roots())
            pm_heap_remove();
        pm_heap_release();
    }
    errno = saved;
}
