// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "offline.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "pmem.h"
#include "recover.h"
#include "rootspec.h"

int offline_busy(const char *dir, struct pm_error *err) {
    pid_t pid = pm_heap.busy_pid;
    // The pid is that of the last program; a tool that looks at the heap leaves none.
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH))
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s is in use by another process; wait for it to end", dir);
    return pm_fail(err, PM_OPERATIONAL, "%.300s is in use by process %d; wait for it to end", dir,
                   (int)pid);
}

int offline_open(const char *dir, enum pm_open_mode mode, struct pm_error *err) {
    const char *preloaded = getenv("LD_PRELOAD");
    if (preloaded && strstr(preloaded, "libpmalloc"))
        return pm_fail(err, PM_OPERATIONAL,
                       "this tool itself runs under PMAlloc, so the heap's addresses are taken; "
                       "unset LD_PRELOAD "
                       "for it");
    pm_options_default();
    int status = pm_offline_open(dir, mode, err);
    if (status != PM_OK && pm_heap.busy)
        return offline_busy(dir, err);
    if (status == PM_OK)
        pmem_use();
    return status;
}

unsigned offline_each_root(void (*fn)(const struct pm_root *root, const char *text, void *arg),
                           void *arg) {
    struct pm_error ignored; // a damaged table has stopped the recovery before
    const struct pm_root_table *table = pm_roots_table(&ignored);
    uint32_t all = table ? table->count : 0;
    unsigned count = 0;
    for (uint32_t i = 0; i < all;) {
        char text[ROOT_TEXT_LEN];
        struct pm_root root = table->root[i++];
        for (; i < all && table->root[i].part; i++) // the other segments of a whole object
            root.length += table->root[i].length;
        pm_root_text(&root, text, sizeof text);
        fn(&root, text, arg);
        count++;
    }
    return count;
}

unsigned offline_slots_used(void) {
    unsigned count = 0;
    for (size_t i = 0; i < PM_ROOT_SLOTS; i++)
        count += pm_heap_slot((unsigned)i) != 0;
    return count;
}
