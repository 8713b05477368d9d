// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-recover --make and --grow: a heap on a fixed medium.
#ifndef PM_TOOLS_MAKE_H
#define PM_TOOLS_MAKE_H

#include <stdbool.h>
#include <stdint.h>

struct make_request {
    const char *path;
    const char *from; // --make: the heap in this directory; NULL: an empty one
    uint64_t size, journal;
    bool grow, force, json;
};
// Makes it, or makes it larger, and reports. Returns the exit status.
int make_heap(const struct make_request *q);

#endif
