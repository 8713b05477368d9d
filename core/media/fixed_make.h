// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makes a heap on a fixed medium (fixed.h), and makes it larger.
#ifndef PM_FIXED_MAKE_H
#define PM_FIXED_MAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

struct pm_fixed_made {
    bool created;     // the file, too
    bool device;      // else it is a file
    bool zeroed;      // what the program gets for the first time is zeroes
    uint64_t data;    // bytes of it
    uint64_t head;    // bytes of everything else
    uint64_t journal; // of which for commits
};

// Makes an empty heap at `path`: in all of the file or device, or in its first `size` bytes. With
// `size` a file that is missing is made, too. What is not zeroes is refused unless `force` is set.
// With room for `journal` bytes of commits. An interruption leaves no heap.
struct pm_fixed_wish {
    uint64_t size, journal;
    bool force;
    bool copy; // the open heap, which is in a directory and read only: not an empty one
};
int pm_fixed_make(const char *path, const struct pm_fixed_wish *wish, struct pm_fixed_made *made,
                  struct pm_error *err);
// The heap at `path`, which no process has open, takes up all of the file or device, or its first
// `size` bytes. What is new must be zeroes, unless the heap does not count on it; with `force` it
// is zeroed. An interruption leaves the heap as it was.
int pm_fixed_grow(const char *path, uint64_t size, bool force, struct pm_fixed_made *made,
                  struct pm_error *err);

#endif
