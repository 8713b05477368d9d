// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --medium: what decides which row of the guarantee table applies to a heap, or to one
// that is to be made in a directory, file or device. No heap is changed, locked or mapped, so the
// heap may be in use.
#ifndef PM_TOOLS_MEDIUM_H
#define PM_TOOLS_MEDIUM_H

#include <stdbool.h>

#include "base/message.h"
#include "media/heap_files.h"
#include "media/persist.h"

enum { MEDIUM_REGIONS = 64 };

struct medium {
    const char *path;
    bool heap;
    bool fixed, device; // it is one file or device of a fixed size
    char type[32], source[256], mounted[256];
    char options[512]; // the mount options that matter
    struct medium_file {
        char name[96];
        // What a mapping of the file needs. LINE or CACHE: MAP_SYNC was granted.
        enum pm_durability durability;
    } file[PM_HEAP_FILES];
    unsigned files;
    struct medium_region {
        unsigned number;
        char domain[32]; // its persistence domain; empty if the kernel does not say
        bool behind;     // the file system's device lies in this region
    } region[MEDIUM_REGIONS];
    unsigned regions;
    bool on_region; // the file system's device lies in one of them
    char kernel[144];
    enum pm_durability durability; // of all files together
};

int medium_find(const char *path, struct medium *m, struct pm_error *err);
void medium_text(const struct medium *m);
void medium_json(const struct medium *m);

#endif
