// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which variables hold the data: the words of a program's variables that lead into the open heap,
// by what hangs from them.
//
//   nearest   blocks to which no other word has a shorter way. Each block counts for one word
//   alone     blocks that nothing would reach without this word
//   reaches   all blocks that it leads to, over others too
//
// Many words in a row of which none leads to much, such as a table of chains, are taken together.
// Of words that lead to the same block, and to no other, one stands for all.
#ifndef PM_TOOLS_HOLDERS_H
#define PM_TOOLS_HOLDERS_H

#include <stdbool.h>
#include <stdint.h>

#include "recovery/mark.h"

struct holders_sum {
    uint64_t blocks, bytes;
};

struct holders_word {
    uint64_t address, length; // in the program
    uint32_t words;           // 1, or those that are taken together
    uint32_t source;          // whose bytes they are in: holders_add()
    uint32_t node;            // of the graph: the first of them
    uint32_t equal;           // 0; or the node of the word that stands for this one
    struct holders_sum nearest, alone, reaches;
};

struct holders; // one at a time

// Marking begins: the heap was opened, and pm_recover() has checked it, and no more. NULL: `err`
// says why.
struct holders *holders_begin(struct pm_error *err);
// Looks for words in bytes that the program has at `address`. False: there is no memory.
bool holders_add(struct holders *h, const void *bytes, uint64_t len, uint64_t address,
                 uint32_t source);
// Reads the heap, once: afterwards it may change. False: there is no memory.
bool holders_read(struct holders *h, pm_progress *progress);
struct holders_found {
    struct holders_word *word; // `shown` of them; those for which others stand, from `rows` on
    uint32_t shown, rows, all;
    uint32_t words;         // that lead into the heap
    struct holders_sum sum; // what they reach
};
// The words with the most bytes by `nearest`, in that order, at most `most`. False: there is no
// memory.
bool holders_find(struct holders *h, uint32_t most, struct holders_found *found);

#endif
