// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a process has mapped.
#ifndef PM_TOOLS_PROGRAM_MAPS_H
#define PM_TOOLS_PROGRAM_MAPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct program_map {
    uint64_t start, end, offset;
    bool writable, executable, private;
    dev_t dev;
    uint64_t inode;   // 0: no file
    const char *name; // "": anonymous
};

// Calls `each` for all mappings, by rising address. False: they cannot be read, with errno.
bool program_maps_each(pid_t pid, void each(const struct program_map *m, void *arg), void *arg);

#endif
