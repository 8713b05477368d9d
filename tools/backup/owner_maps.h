// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where another process has mapped the files of a heap.
#ifndef PM_TOOLS_OWNER_MAPS_H
#define PM_TOOLS_OWNER_MAPS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "backup_source.h"

struct owner_map {
    uint64_t start, end;
    uint64_t offset; // of `start`, in the file or part
    size_t row;
    bool shared;
};

struct owner_maps {
    struct owner_map *map;
    size_t count, room;
    bool super; // the superblock is among them
};

// Reads the maps of the process, once more at each call. False: they cannot be read, with errno.
bool owner_maps_read(struct owner_maps *m, pid_t pid, const struct source *s);

// The process that has the heap of `s` open. 0: none can be found.
pid_t owner_find(const struct source *s, struct owner_maps *m);

#endif
