// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A table that is reserved for all that the heap's range could ever need. Where the kernel counts what may be written,
// not what is (vm.overcommit_memory=2, `ulimit -d`), it is made writable in steps, as far as the heap reaches:
//
//   map          ready            reach
//   | may be written | reads as zeroes |
#ifndef PM_TABLE_H
#define PM_TABLE_H

#include <stdbool.h>
#include <stddef.h>

struct pm_table {
    char *map;
    size_t reach, ready;
};

// Whether tables grow in steps; decided before the first one is reserved.
extern bool pm_table_steps;

// False when there is no address space for it.
bool pm_table_reserve(struct pm_table *t, size_t bytes);
bool pm_table_step(struct pm_table *t, size_t bytes);

// Makes the first `bytes` writable; false when memory is out. Extent lock held, or no other thread.
static inline bool pm_table_need(struct pm_table *t, size_t bytes) {
    return bytes <= t->ready || pm_table_step(t, bytes);
}

#endif
