// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pagemap_scan.h"

#include <errno.h>
#include <linux/ioctl.h>
#include <linux/types.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REGIONS 128
#define SCAN_CALL _IOWR('f', 16, struct pm_pagemap_scan)

static long scan_once(int fd, struct pm_pagemap_scan *s, struct pm_pagemap_region *to,
                      size_t room) {
    long found;
    s->size = sizeof *s;
    s->vec = (uintptr_t)to;
    s->vec_len = room;
    do
        found = syscall(SYS_ioctl, fd, SCAN_CALL, s);
    while (found < 0 && errno == EINTR);
    if (found < 0 || s->walk_end <= s->start)
        return -1;
    s->start = s->walk_end;
    return found;
}

long pm_pagemap_scan_to(int fd, struct pm_pagemap_scan *s, struct pm_pagemap_region *to,
                        size_t room) {
    size_t count = 0;
    while (s->start < s->end && count < room) {
        long found = scan_once(fd, s, to + count, room - count);
        if (found < 0)
            return -1;
        count += (size_t)found;
    }
    return (long)count;
}

bool pm_pagemap_scan(int fd, struct pm_pagemap_scan *s, pm_pagemap_fn *fn, void *arg) {
    struct pm_pagemap_region region[REGIONS];
    while (s->start < s->end) {
        long found = scan_once(fd, s, region, REGIONS);
        if (found < 0)
            return false;
        for (long i = 0; i < found && fn; i++)
            fn(region[i].start, region[i].end, arg);
    }
    return true;
}
