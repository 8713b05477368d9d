// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which pages of a shared mapping another process has stored to since the last look. The kernel
// keeps the record (Linux 6.7 or later): userfaultfd's asynchronous write protection and
// PAGEMAP_SCAN. A first store to a page after a look costs the process a few microseconds, and
// nothing else changes for it. The record ends with the descriptor, so also when this process ends
// in whatever way.
#ifndef PM_TOOLS_WRITTEN_H
#define PM_TOOLS_WRITTEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct written_range {
    uint64_t start, end;
};

struct written {
    int faults, pagemap; // -1: nothing can be recorded
    const char *why;     // nothing can be recorded, in words
    struct written_range *range;
    uint64_t count, room;
};

// Prepares to record. False: this kernel or that process does not allow it; `why` says which.
bool written_open(struct written *w, pid_t pid);
void written_close(struct written *w);
// From here on stores to [start, end) are recorded. False: they are not.
bool written_watch(struct written *w, uint64_t start, uint64_t end);

// Calls `fn` for each run of pages in [start, end) stored to since the last look, and begins anew.
// May report a page that was only read. False: it is not known.
typedef void written_fn(uint64_t start, uint64_t end, void *arg);
bool written_look(struct written *w, uint64_t start, uint64_t end, written_fn *fn, void *arg);

#endif
