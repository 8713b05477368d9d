// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A look at a heap that a process is using, from outside: files are read and nothing else, no lock is taken and nothing
// is mapped, so the process and whoever wants the heap next notice nothing. What is read changes meanwhile; a look is
// settled when the log read the same twice and is a good one.
//
// What can be known: whatever is on media at all times, that is files, extents, slabs and roots. How many blocks
// of a slab are in use is known to the process alone.
#ifndef PM_TOOLS_LOOK_H
#define PM_TOOLS_LOOK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "message.h"
#include "sizeclass.h"

struct look {
    pid_t pid;           // of the owner; 0: nobody has it
    uint64_t start;      // when that process started
    char process[16];    // what it is doing: "running", "sleeping", ...
    bool clean;          // closed cleanly
    uint64_t opens;      // times it was opened
    uint64_t heap_bytes; // length of the data file
    uint64_t data_bytes; // of it on the file system
    uint64_t metadata_bytes;
    unsigned roots;
    bool settled; // the rest is from this look, not from an earlier one
    uint64_t slabs, extents, extent_bytes;
    uint64_t log_chunks, log_active, log_live;
    uint64_t class_slabs[PM_CLASSES + 1]; // [0]: whose header does not tell
};

// Opens the heap's directory. PM_OK, PM_OPERATIONAL.
int look_open(const char *dir, struct pm_error *err);
// PM_OK; PM_OPERATIONAL also when the heap is no longer there, which *gone says; PM_DAMAGE.
int look_take(struct look *look, bool *gone, struct pm_error *err);

#endif
