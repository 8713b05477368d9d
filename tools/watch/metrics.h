// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --metrics: figures of heaps for a monitoring system, in OpenMetrics' text format.
#ifndef PM_TOOLS_METRICS_H
#define PM_TOOLS_METRICS_H

#include <stdbool.h>

struct metrics_request {
    char *const *heaps;
    int count;
    bool all;                   // the user's default heaps, too
    const char *const *backups; // directories
    int backup_count;
    const char *output;
};

// Looks at each heap once, as look.h does, and prints all figures to standard output, or to the
// file `output`, which gets its name when it is whole. Of a heap that cannot be looked at a line
// says why, and its pmalloc_up is 0. A backup says itself how old it is, and of which heap; 0 if it
// is none of these. Returns the exit status: that of the first such heap or backup, or 0.
int metrics(const struct metrics_request *request);

#endif
