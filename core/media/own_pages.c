// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "own_pages.h"

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/geometry.h"
#include "base/pagemap_scan.h"
#include "base/proc.h"

enum pm_own_way pm_own_way = PM_OWN_SCAN;

struct each {
    pm_own_fn *fn;
    void *arg;
};

static void found_run(uint64_t start, uint64_t end, void *each) {
    const struct each *e = each;
    e->fn((char *)(uintptr_t)start, end - start, e->arg);
}

// Copied pages are in memory or swapped out, and not a file's.
static bool scan_but(uint64_t none_of, int fd, char *at, size_t len, const struct each *each) {
    struct pm_pagemap_scan s = {.start = (uintptr_t)at,
                                .end = (uintptr_t)at + len,
                                .category_inverted = none_of,
                                .category_mask = none_of,
                                .category_anyof_mask = PM_SCAN_PRESENT | PM_SCAN_SWAPPED,
                                .return_mask = PM_SCAN_PRESENT};
    return pm_pagemap_scan(fd, &s, found_run, (void *)(uintptr_t)each);
}

// A guard page (MADV_GUARD_INSTALL, from Linux 6.13 on) looks as if it were on swap, and whoever
// reads it is ended. glibc 2.42 puts one below each thread's stack.
#define GUARD_INSTALL 102 // MADV_GUARD_INSTALL, which older headers lack
static bool has_guards(void) { return syscall(SYS_madvise, NULL, 0, GUARD_INSTALL) == 0; }

static bool scan(int fd, char *at, size_t len, pm_own_fn *fn, void *arg) {
    static uint64_t none_of = PM_SCAN_FILE | PM_SCAN_GUARD;
    const struct each each = {fn, arg};
    if (scan_but(none_of, fd, at, len, &each))
        return true;
    if (none_of == PM_SCAN_FILE || has_guards())
        return false; // then the bits tell, from 6.15 on
    none_of = PM_SCAN_FILE;
    return scan_but(none_of, fd, at, len, &each);
}

#define BIT_PRESENT ((uint64_t)1 << 63)
#define BIT_SWAPPED ((uint64_t)1 << 62)
#define BIT_FILE ((uint64_t)1 << 61)
#define BIT_GUARD ((uint64_t)1 << 58)
#define WORDS 512

static bool is_own(uint64_t word) {
    return (word & (BIT_PRESENT | BIT_SWAPPED)) && !(word & (BIT_FILE | BIT_GUARD));
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

int pm_own_open(void) {
    if (pm_own_way == PM_OWN_ALL)
        return -1;
    return pm_proc_take(PM_PROC_PAGEMAP);
}

void pm_own_close(int fd) { pm_proc_give_back(fd); }

// A way that has failed half way has reported some pages already. Reporting a page twice does no
// harm.
void pm_own_pages_by(int fd, char *at, size_t len, pm_own_fn *fn, void *arg) {
    if (!len)
        return;
    if (fd < 0 || pm_own_way == PM_OWN_ALL) {
        fn(at, len, arg);
        return;
    }
    bool done = pm_own_way == PM_OWN_SCAN && scan(fd, at, len, fn, arg);
    if (!done && pm_own_way == PM_OWN_SCAN)
        pm_own_way = PM_OWN_PAGEMAP;
    if (!done && !read_bits(fd, at, len, fn, arg)) {
        pm_own_way = PM_OWN_ALL;
        fn(at, len, arg);
    }
}

void pm_own_pages(char *at, size_t len, pm_own_fn *fn, void *arg) {
    if (!len)
        return;
    int fd = pm_own_open();
    pm_own_pages_by(fd, at, len, fn, arg);
    pm_own_close(fd);
}
