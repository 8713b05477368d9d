// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The pages of a private mapping that the process has stored to: the kernel has copied them.
#ifndef PM_OWN_PAGES_H
#define PM_OWN_PAGES_H

#include <stdbool.h>
#include <stddef.h>

enum pm_own_way {
    PM_OWN_SCAN,    // the kernel's PAGEMAP_SCAN, from Linux 6.7 on
    PM_OWN_PAGEMAP, // the bits of /proc/thread-self/pagemap
    PM_OWN_ALL,     // neither can be had: every page is reported
};
// The best way that has worked so far. Tests set it.
extern enum pm_own_way pm_own_way;

typedef void pm_own_fn(char *at, size_t len, void *arg);
// Calls `fn` for each run of copied pages in [at, at + len), by rising address. May report a page
// that is not copied. Where no other thread stores to the range, it misses none.
void pm_own_pages(char *at, size_t len, pm_own_fn *fn, void *arg);
// The same in steps, for many ranges in a row. pm_own_open() gives what the others take; where it
// gives -1, every page is reported.
int pm_own_open(void);
void pm_own_pages_by(int fd, char *at, size_t len, pm_own_fn *fn, void *arg);
void pm_own_close(int fd);

#endif
