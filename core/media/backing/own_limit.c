// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "own_limit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/options.h"
#include "dir_held.h"
#include "fixed.h"
#include "media/heap.h"
#include "media/persist.h"

#define DIGITS 24

// On a fixed medium its length is the limit, and a heap without a name can be found by no tool.
static bool has_names(void) { return !pm_fixed_is_open() && !pm_heap.nameless; }

uint64_t pm_own_limit(void) {
    char text[DIGITS];
    uint64_t bytes = 0;
    int saved = errno;
    ssize_t len = has_names() && pm_dir_ready()
                      ? readlinkat(pm_heap.dir_fd, pm_heap.own_limit.name, text, sizeof text)
                      : -1;
    errno = saved;
    if (len <= 0 || len == sizeof text)
        return 0;
    text[len] = '\0';
    return pm_parse_size(text, &bytes) ? bytes : 0;
}

bool pm_own_limit_look(uint64_t seen) {
    uint64_t now = pm_heap.limit;
    uint64_t own = pm_heap_on_media() ? pm_own_limit() & ~(PM_REGION_SIZE - 1) : 0;
    while (own > now && !atomic_compare_exchange_weak(&pm_heap.limit, &now, own)) {
    }
    return pm_heap.limit > seen;
}

int pm_own_limit_set(uint64_t bytes, struct pm_error *err) {
    char text[DIGITS];
    const char *name = pm_heap.own_limit.name, *new = pm_heap.new_limit.name;
    snprintf(text, sizeof text, "%lu", (unsigned long)bytes);
    bool good = unlinkat(pm_heap.dir_fd, new, 0) == 0 || errno == ENOENT;
    good = good && symlinkat(text, pm_heap.dir_fd, new) == 0 &&
           renameat(pm_heap.dir_fd, new, pm_heap.dir_fd, name) == 0 &&
           (!pm_persist_syncs() || fsync(pm_heap.dir_fd) == 0);
    return good ? PM_OK
                : pm_fail(err, PM_OPERATIONAL, "%.300s/%s: %s", pm_heap.dir, name,
                          pm_strerror(errno));
}
