// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A table with addresses for all that the heap's range could ever need. It is made writable in
// steps, for as much of the heap as is in use:
//
//   map          ready            reach
//   | writable     | out of bounds         |
//
// Of a table along the range (below) the second part reads as zeroes.
//
// Memory that was never writable costs nothing where all writable memory counts: in core dumps,
// under vm.overcommit_memory=2 and `ulimit -d`, under mlock(), and in valgrind's search for leaks.
//
// Lock: the extent lock, except while the process has one thread.
#ifndef PM_LAZY_TABLE_H
#define PM_LAZY_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "geometry.h"

struct pm_lazy_table {
    char *map;
    size_t reach, ready;
    bool is_data; // holds the program's data, so core dumps contain it
};

// Reserves a table of at most `bytes`. False: there is no address space for it.
bool pm_lazy_table_reserve(struct pm_lazy_table *t, size_t bytes);
// The slow path of pm_lazy_table_need().
bool pm_lazy_table_step(struct pm_lazy_table *t, size_t bytes);

// Makes the first `bytes` writable. False: memory is out.
static inline bool pm_lazy_table_need(struct pm_lazy_table *t, size_t bytes) {
    return bytes <= t->ready || pm_lazy_table_step(t, bytes);
}

// A table with one element for each 2^shift bytes of the heap's range. It is flat, and consists of
// a lazy table for each shard of the range. All tables of one shard grow together, with the shard.
struct pm_range_table {
    struct pm_lazy_table table[PM_SHARDS];
    size_t element;
    unsigned shift;
    struct pm_range_table *next; // the list of all range tables that are reserved
};

// Reserves `count` tables side by side for a range of `range` bytes. One reservation takes fewer
// system calls than several. False: there is no address space for it.
bool pm_range_tables_reserve(struct pm_range_table *first, unsigned count, uint64_t range);
static inline bool pm_range_table_reserve(struct pm_range_table *t, uint64_t range) {
    return pm_range_tables_reserve(t, 1, range);
}
// Makes all range tables writable for the first `bytes` of a shard. False: memory is out. Lock: the
// shard's extent lock, except while the process has one thread.
bool pm_range_tables_cover(unsigned shard, uint64_t bytes);
// For bytes of a table, writable, all of which are about to be stored to. One call replaces a fault
// for every page of them. It may fail: then each fault comes by itself.
void pm_table_touch(void *from, void *to);
// Divides table[0], which was reserved for several shards with `stride` bytes each, into an array
// of PM_SHARDS tables. table[0] keeps the first shard's bytes.
void pm_lazy_table_divide(struct pm_lazy_table *table, size_t stride);

#endif
