// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How far a program's start is, looked at from another process. The program notices nothing: only
// /proc is read.
#ifndef PM_TOOLS_SEEN_H
#define PM_TOOLS_SEEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum seen_stage {
    SEEN_NOTHING, // it has not come to the library yet
    SEEN_BEGINS,
    SEEN_MARKS,
    SEEN_SWEEPS,
    SEEN_LATE,  // main runs, and late roots wait
    SEEN_READY, // roots are restored
};

struct seen {
    enum seen_stage stage;
    uint64_t done, total; // of SEEN_MARKS and SEEN_SWEEPS
    bool heap;            // of SEEN_READY: the program has a heap
};

// Looks at `pid`, or at what it has started where `name` is the PMALLOC_PROGRAM that the heap is
// for ("": `pid` itself). False with errno: the process may not be looked at.
bool seen_look(pid_t pid, const char *name, struct seen *out);

#endif
