// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-recover --grow and --spare: more room for a heap in directories, also while its program
// runs. Nothing of the heap itself is written, so no lock is taken.
#ifndef PM_TOOLS_MAKE_ROOM_H
#define PM_TOOLS_MAKE_ROOM_H

#include <stdbool.h>
#include <stdint.h>

struct room_request {
    const char *heap; // DIR[:DIR...]; the program may have it open
    bool grow, spares;
    uint64_t limit, spare; // 0: the limit stays; there is to be no space in reserve
    bool json;
};
// Whether the heap is one in directories: --grow is for heaps in files and devices, too.
bool room_is_for(const char *heap);
// Makes it, and reports. Returns the exit status.
int make_room(const struct room_request *q);

#endif
