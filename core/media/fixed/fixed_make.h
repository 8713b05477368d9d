// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makes a heap on fixed media (fixed.h), and makes one of them larger.
#ifndef PM_FIXED_MAKE_H
#define PM_FIXED_MAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

// Of one medium.
struct pm_fixed_made {
    bool created;     // the file, too
    bool device;      // else it is a file
    bool same;        // it is as large as before
    bool zeroed;      // what the program gets for the first time is zeroes
    uint64_t data;    // bytes of it
    uint64_t head;    // bytes of everything else
    uint64_t journal; // of which for commits
    uint64_t beyond;  // bytes that no heap can use: it has at most 1 TiB of data on each medium
    unsigned number, media; // its place, from 0, and how many there are
};

struct pm_fixed_wish {
    uint64_t size, journal;
    bool force;
    bool copy; // the open heap, which is in a directory and read only: not an empty one
};
// Makes an empty heap on the media at `path`, in this order: in all of each file or device, or in
// its first `size` bytes. With `size` files that are missing are made, too. Other bytes than zeroes
// are refused unless `force` is set. With room for `journal` bytes of commits, on the first one. An
// interruption leaves no heap.
int pm_fixed_make(const char *const path[], unsigned count, const struct pm_fixed_wish *wish,
                  struct pm_fixed_made *made, struct pm_error *err);
// The medium at `path`, whose heap no process has open, is used in all of the file or device, or in
// its first `size` bytes. The new bytes must be zeroes, unless the heap does not rely on that; with
// `force` it is zeroed. An interruption leaves the heap as it was.
int pm_fixed_grow(const char *path, uint64_t size, bool force, struct pm_fixed_made *made,
                  struct pm_error *err);

#endif
