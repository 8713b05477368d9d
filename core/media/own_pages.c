// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "own_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ioctl.h>
#include <linux/types.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/geometry.h"

enum pm_own_way pm_own_way = PM_OWN_SCAN;

// As linux/fs.h has it from Linux 6.7 on. Older headers lack it, so the names are ours.
struct scan_region {
    uint64_t start, end, categories;
};
struct scan {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN_CALL _IOWR('f', 16, struct scan)
#define SCAN_FILE ((uint64_t)1 << 2)
#define SCAN_PRESENT ((uint64_t)1 << 3)
#define SCAN_SWAPPED ((uint64_t)1 << 4)
#define REGIONS 128

// Copied pages are in memory or swapped out, and not a file's.
static bool scan(int fd, char *at, size_t len, pm_own_fn *fn, void *arg) {
    struct scan_region region[REGIONS];
    struct scan s = {.size = sizeof s,
                     .start = (uintptr_t)at,
                     .end = (uintptr_t)at + len,
                     .vec = (uintptr_t)region,
                     .vec_len = REGIONS,
                     .category_inverted = SCAN_FILE,
                     .category_mask = SCAN_FILE,
                     .category_anyof_mask = SCAN_PRESENT | SCAN_SWAPPED,
                     .return_mask = SCAN_PRESENT};
    while (s.start < s.end) {
        long found = syscall(SYS_ioctl, fd, SCAN_CALL, &s);
        if (found < 0 && errno == EINTR)
            continue;
        if (found < 0)
            return false;
        for (long i = 0; i < found; i++)
            fn((char *)(uintptr_t)region[i].start, region[i].end - region[i].start, arg);
        if (s.walk_end <= s.start)
            return false;
        s.start = s.walk_end;
    }
    return true;
}

#define BIT_PRESENT ((uint64_t)1 << 63)
#define BIT_SWAPPED ((uint64_t)1 << 62)
#define BIT_FILE ((uint64_t)1 << 61)
#define WORDS 512

static bool is_own(uint64_t word) {
    return (word & (BIT_PRESENT | BIT_SWAPPED)) && !(word & BIT_FILE);
}

static bool read_bits(int fd, char *at, size_t len, pm_own_fn *fn, void *arg) {
    uint64_t word[WORDS];
    char *end = at + len, *from = NULL; // the run that is being found
    while (at < end) {
        size_t count = (size_t)(end - at) / PM_PAGE_SIZE;
        count = count < WORDS ? count : WORDS;
        long got = syscall(SYS_pread64, fd, word, count * sizeof word[0],
                           (uintptr_t)at / PM_PAGE_SIZE * sizeof word[0]);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < (long)sizeof word[0])
            return false;
        for (size_t i = 0; i < (size_t)got / sizeof word[0]; i++, at += PM_PAGE_SIZE) {
            bool own = is_own(word[i]);
            if (own && !from)
                from = at;
            if (!own && from) {
                fn(from, (size_t)(at - from), arg);
                from = NULL;
            }
        }
    }
    if (from)
        fn(from, (size_t)(end - from), arg);
    return true;
}

// A way that has failed half way has reported some pages already. Reporting a page twice does no
// harm.
void pm_own_pages(char *at, size_t len, pm_own_fn *fn, void *arg) {
    if (!len)
        return;
    long fd = -1;
    if (pm_own_way != PM_OWN_ALL)
        fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fn(at, len, arg);
        return;
    }
    bool done = pm_own_way == PM_OWN_SCAN && scan((int)fd, at, len, fn, arg);
    if (!done && pm_own_way == PM_OWN_SCAN)
        pm_own_way = PM_OWN_PAGEMAP;
    if (!done && !read_bits((int)fd, at, len, fn, arg)) {
        pm_own_way = PM_OWN_ALL;
        fn(at, len, arg);
    }
    syscall(SYS_close, fd);
}
