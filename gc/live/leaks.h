// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Leaks by size: how many blocks of each size nothing reaches, and one of them for a debugger.
#ifndef PM_LEAKS_H
#define PM_LEAKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sizeclass.h"

// One row for each size class, then one for the large blocks from each power of two of pages on.
#define PM_LEAK_ROWS (PM_CLASSES + 1 + 32)

struct pm_leak_row {
    uint64_t blocks, bytes;
    const void *example; // the last that was added; NULL: its address is not known
};

struct pm_leaks {
    struct pm_leak_row row[PM_LEAK_ROWS], sum;
};

// `block` may be NULL.
void pm_leaks_add(struct pm_leaks *leaks, const void *block, size_t bytes);
// The next row in the order of sizes; the first one after 0, and 0 after the last.
unsigned pm_leaks_after(unsigned row);
// The smallest size of a row, and whether the row has larger blocks, too.
size_t pm_leaks_size(unsigned row, bool *and_more);
// Calls `print` for the lines of a table: a head, then each row that has blocks.
void pm_leaks_lines(const struct pm_leaks *leaks, void (*print)(const char *line));

#endif
