// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --blocks: the blocks of a heap, one by one. The heap has been opened, and a recovery
// that writes nothing has marked what its roots reach. Which other blocks are allocated is on
// record after a clean close, or a process that has the heap open says it
// (watch/blocks_report.h).
#ifndef PM_TOOLS_BLOCK_LIST_H
#define PM_TOOLS_BLOCK_LIST_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/message.h"
#include "blocks/population.h"

enum { BLOCKS_OF_ANY = -1, BLOCKS_LARGE = 0 };

struct block_list {
    bool json, unreached;
    int type; // BLOCKS_OF_ANY, or 0 .. 65535
    int cls;  // BLOCKS_OF_ANY, BLOCKS_LARGE, or a size class
    // Of a process.
    pid_t pid; // 0: a heap at rest
    uint64_t held_ns;
    bool commits; // the heap is that of the last commit
    // Whether all allocated blocks are known. Else only those that are alive, and large ones.
    bool exact;
};

// Reads "64", the bytes of a block, or "large". -2: no class has such blocks; *next becomes the
// bytes of the next one that has, 0: there is none, or it is no number.
int block_list_class(const char *text, unsigned *next);

// What is allocated. Of a small population a bit for each block; `block_list_note_large` says that
// the block in an extent is free. False: no memory.
bool block_list_begin(void);
bool block_list_note(uint32_t extent, bool old, const uint64_t *allocated, unsigned words);
void block_list_note_free(uint32_t extent);
// The same from the bitmaps of a clean close. `clean`: the heap was closed so, and they are of it.
// *exact says whether there are any.
bool block_list_at_rest(bool clean, bool *exact);

void block_list_print(const struct block_list *b, const char *heap);

#endif
