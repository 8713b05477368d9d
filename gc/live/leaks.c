// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "leaks.h"

#include <stdio.h>

#include "base/geometry.h"

static unsigned row_of(size_t bytes) {
    if (bytes <= PM_SMALL_MAX)
        return pm_size_to_class(bytes);
    return PM_CLASSES + 1 + (63 - (unsigned)__builtin_clzll(bytes >> PM_PAGE_SHIFT));
}

void pm_leaks_add(struct pm_leaks *leaks, const void *block, size_t bytes) {
    struct pm_leak_row *row = &leaks->row[row_of(bytes)];
    row->blocks++;
    row->bytes += bytes;
    if (block)
        row->example = block;
    leaks->sum.blocks++;
    leaks->sum.bytes += bytes;
}

unsigned pm_leaks_after(unsigned row) { return row + 1 < PM_LEAK_ROWS ? row + 1 : 0; }

size_t pm_leaks_size(unsigned row, bool *and_more) {
    *and_more = row > PM_CLASSES;
    return *and_more ? PM_PAGE_SIZE << (row - PM_CLASSES - 1) : pm_classes[row].size;
}

void pm_leaks_lines(const struct pm_leaks *leaks, void (*print)(const char *line)) {
    char line[100];
    bool and_more;
    print("        size     blocks          bytes  one of them");
    for (unsigned i = pm_leaks_after(0); i; i = pm_leaks_after(i)) {
        const struct pm_leak_row *row = &leaks->row[i];
        if (!row->blocks)
            continue;
        size_t size = pm_leaks_size(i, &and_more);
        snprintf(line, sizeof line, "%11lu%c %10lu %14lu  %p", (unsigned long)size,
                 and_more ? '+' : ' ', (unsigned long)row->blocks, (unsigned long)row->bytes,
                 row->example);
        print(line);
    }
}
