// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The PAGEMAP_SCAN call of Linux 6.7 and later. Older headers lack it, so the names are ours.
#ifndef PM_PAGEMAP_SCAN_H
#define PM_PAGEMAP_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// As linux/fs.h has it.
struct pm_pagemap_scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PM_SCAN_PROTECT 1u    // flag: what is reported is protected again, in the same step
#define PM_SCAN_MUST_WATCH 2u // flag: fails where stores are not recorded
#define PM_SCAN_WRITTEN ((uint64_t)1 << 1)
#define PM_SCAN_FILE ((uint64_t)1 << 2)
#define PM_SCAN_PRESENT ((uint64_t)1 << 3)
#define PM_SCAN_SWAPPED ((uint64_t)1 << 4)
#define PM_SCAN_GUARD ((uint64_t)1 << 8) // kernels that do not know it refuse the call

struct pm_pagemap_region {
    uint64_t start, end, categories;
};
// Notes the runs of pages of [start, end) that the categories ask for, as many as there is room
// for; s->start is behind what was looked at. Negative: as below, and of some runs nothing is
// known.
long pm_pagemap_scan_to(int fd, struct pm_pagemap_scan *s, struct pm_pagemap_region *to,
                        size_t room);
// Calls `fn`, unless it is NULL, for each run of pages of [start, end) that the categories ask for.
// `fd` is a pagemap. False: the kernel cannot do it, or not here; `fn` may have been called.
typedef void pm_pagemap_fn(uint64_t start, uint64_t end, void *arg);
bool pm_pagemap_scan(int fd, struct pm_pagemap_scan *s, pm_pagemap_fn *fn, void *arg);

#endif
