// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that is killed, or that executes another one, leaves its default heap. Nobody can
// use that heap any more. So every start on a default heap removes one such heap: one only,
// picked by chance, so that a start costs the same however many programs run.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os_file.h"
#include "choose_tidy.h"
#include "media/heap.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"

// The nth heap's name in a directory buffer that the kernel has filled, or NULL. *count becomes the
// number of names looked at.
static const char *nth_entry(const char *buffer, ssize_t got, unsigned n, const char *own,
                             unsigned *count) {
    const char *name;
    *count = 0;
    for (ssize_t at = 0; (name = pm_os_next_name(buffer, got, &at)) != NULL;)
        if (strcmp(name, own) != 0 && (*count)++ == n)
            return name;
    return NULL;
}

void pm_choose_tidy(int fd, const char *parent, const char *own) {
    char buffer[4096] __attribute__((aligned(8))), dir[512];
    int saved = errno;
    ssize_t got = pm_os_read_entries(fd, buffer, sizeof buffer);
    unsigned count;
    nth_entry(buffer, got, UINT32_MAX, own, &count);
    // Process numbers count up, so a series of starts looks at every heap.
    const char *name = count ? nth_entry(buffer, got, (unsigned)getpid() % count, own, &count) : "";
    struct pm_error err;
    // Opened under its locks, as its owner would open it. A heap in use is busy. A heap that cannot
    // be opened is left alone.
    if (*name && snprintf(dir, sizeof dir, "%s/%s", parent, name) < (int)sizeof dir &&
        pm_heap_open(dir, PM_OPEN_DEAD, false, &err) == PM_OK) {
        if (!pm_heap_has_roots())
            pm_heap_remove();
        pm_heap_release();
    }
    errno = saved;
}
