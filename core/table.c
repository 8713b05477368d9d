// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "table.h"

#include <errno.h>
#include <sys/mman.h>

#include "os.h"

#define STEP ((size_t)1 << 20)

bool pm_table_steps;

bool pm_table_reserve(struct pm_table *t, size_t bytes) {
    t->reach = bytes;
    t->ready = pm_table_steps ? 0 : bytes;
    if (pm_table_steps) {
        void *p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        t->map = p == MAP_FAILED ? NULL : p;
    } else {
        t->map = pm_os_reserve(bytes);
    }
    return t->map != NULL;
}

bool pm_table_step(struct pm_table *t, size_t bytes) {
    if (bytes > t->reach)
        return false;
    size_t to = (bytes + STEP - 1) & ~(STEP - 1);
    to = to < t->reach ? to : t->reach;
    int saved = errno;
    if (mprotect(t->map + t->ready, to - t->ready, PROT_READ | PROT_WRITE) != 0)
        return false;
    errno = saved;
    t->ready = to;
    return true;
}
