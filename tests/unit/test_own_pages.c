// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Which pages of private memory count as copied, each way to find out. A guard page is none: it
// looks as if it were on swap, and must not be read.
#include "media/own_pages.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/geometry.h"
#include "check.h"

#define PAGES 8
#define GUARD_INSTALL 102 // MADV_GUARD_INSTALL, which older headers lack

static char *memory;
static bool own[PAGES];

static void note(char *at, size_t len, void *arg) {
    (void)arg;
    for (size_t i = 0; i < len / PM_PAGE_SIZE; i++)
        own[(size_t)(at - memory) / PM_PAGE_SIZE + i] = true;
}

static void finds(enum pm_own_way way, bool guards) {
    static const bool stored[PAGES] = {[0] = true, [2] = true, [3] = true, [7] = true};
    pm_own_way = way;
    memset(own, 0, sizeof own);
    pm_own_pages(memory, PAGES * PM_PAGE_SIZE, note, NULL);
    for (int i = 0; i < PAGES; i++)
        CHECK_EQ(own[i], stored[i] && !(guards && i == 3));
    CHECK(pm_own_way != PM_OWN_ALL);
}

int main(void) {
    memory = mmap(NULL, PAGES * PM_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int i = 0; i < PAGES; i++)
        if (i == 0 || i == 2 || i == 3 || i == 7)
            memory[(size_t)i * PM_PAGE_SIZE] = 1;
    finds(PM_OWN_SCAN, false);
    finds(PM_OWN_PAGEMAP, false);
    if (madvise(memory + 3 * PM_PAGE_SIZE, PM_PAGE_SIZE, GUARD_INSTALL) == 0) {
        finds(PM_OWN_SCAN, true);
        finds(PM_OWN_PAGEMAP, true);
    } else {
        CHECK_EQ(errno, EINVAL); // this kernel has none
    }
    return CHECK_DONE();
}
