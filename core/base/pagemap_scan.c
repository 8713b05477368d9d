// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pagemap_scan.h"

#include <errno.h>
#include <linux/ioctl.h>
#include <linux/types.h>
#include <sys/syscall.h>
#include <unistd.h>

struct region {
    uint64_t start, end, categories;
};
#define REGIONS 128
#define SCAN_CALL _IOWR('f', 16, struct pm_pagemap_scan)

bool pm_pagemap_scan(int fd, struct pm_pagemap_scan *s, pm_pagemap_fn *fn, void *arg) {
    struct region region[REGIONS];
    s->size = sizeof *s;
    s->vec = (uintptr_t)region;
    s->vec_len = REGIONS;
    while (s->start < s->end) {
        long found = syscall(SYS_ioctl, fd, SCAN_CALL, s);
        if (found < 0 && errno == EINTR)
            continue;
        if (found < 0)
            return false;
        for (long i = 0; i < found && fn; i++)
            fn(region[i].start, region[i].end, arg);
        if (s->walk_end <= s->start)
            return false;
        s->start = s->walk_end;
    }
    return true;
}
