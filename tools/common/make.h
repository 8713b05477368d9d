// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-recover --make and --grow: a heap on fixed media.
#ifndef PM_TOOLS_MAKE_H
#define PM_TOOLS_MAKE_H

#include <stdbool.h>
#include <stdint.h>

struct make_request {
    const char *const *paths; // each PATH or PATH:PATH...; NULL after the last one
    const char *from;         // --make: the heap in this directory; NULL: an empty one
    uint64_t size, journal;
    bool grow, force, yes, json;
};
// Makes it, or makes one of its media larger, and reports. Returns the exit status.
int make_heap(const struct make_request *q);

#endif
