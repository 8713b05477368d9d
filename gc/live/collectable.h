// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks that belong to a collector in the living process (preload/boehm), beside those that the
// program frees itself. One byte for each 16 of the heap says so. It stands at the first granule of
// a block, and only while the block is handed out:
//
//   0                       no block, or one of malloc(): explicit. The collector never frees it,
//                           and all explicit blocks are roots
//   kind | OWNED            uncollectable: the same, but of a kind
//   kind | OWNED | MORTAL   freed when nothing reaches it
//
// The two bits of STATE say what the last collection has found of a mortal block:
//
//   0             nothing: the block is younger
//   pm_col_mark   it is alive. The next collection marks with the other one of two values, so
//                 nobody has to remove the marks of this one
//   DEAD          it is not: the sweep frees it
//
// The world goes on before the sweep. Nothing reaches a dead block, so nobody looks at it but the
// sweep, and a program that keeps addresses out of sight; who takes these addresses holds the same
// lock as the sweep. The sweep ends before the next marking.
//
// Writers: the thread that hands the block out or frees it; the collector. Threads are held only
// outside this library (threads/hold.c), so that no thread is between a block and its byte.
#ifndef PM_COLLECTABLE_H
#define PM_COLLECTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pages/pagemap.h"

#define PM_COL_KINDS 16u
#define PM_COL_KIND 0x0fu
#define PM_COL_OWNED 0x10u
#define PM_COL_MORTAL 0x20u
#define PM_COL_STATE 0xc0u
#define PM_COL_MARK 0x40u // the first collection's; the next one marks with 0x80
#define PM_COL_DEAD 0xc0u

// NULL: there is no collector in this process.
extern uint8_t *pm_col;

// By pm_tag_index(), as the tag.
static inline uint8_t *pm_col_of(uint64_t offset) {
    return &pm_col[pm_tag_index(offset >> PM_GRANULE_SHIFT)];
}

// The mark of the collection that runs, or of the last one. Changes while the world is held.
extern uint8_t pm_col_mark;
static inline bool pm_col_marked(uint8_t byte) { return (byte & PM_COL_STATE) == pm_col_mark; }

// How blocks of a kind are scanned: a descriptor of the mark interface (trace.h).
struct pm_col_kind {
    uint64_t descriptor;
    bool add_size; // the block's size is added to the descriptor
    bool clear;    // new blocks are zeroes
    bool mortal;
    bool holds; // what a dead block reaches stays alive until the block is freed
    // The program's, or NULL. The sweep asks it before it frees a block; not 0: the block stays.
    int (*disclaim)(void *block);
};
extern struct pm_col_kind pm_col_kinds[PM_COL_KINDS];

// Reserves the table; the heap is open. False: there is no address space.
bool pm_col_init(void);

static inline uint8_t pm_col_at(const void *p) {
    return pm_col && pm_granule(p) < PM_GRANULES ? *pm_col_of(pm_heap_offset(p)) : 0;
}
static inline void pm_col_set(const void *p, unsigned kind) {
    *pm_col_of(pm_heap_offset(p)) =
        (uint8_t)(kind | PM_COL_OWNED | (pm_col_kinds[kind].mortal ? PM_COL_MORTAL : 0));
}

// The block around `p`, which may point into it. `size`: how many bytes it has room for.
struct pm_col_block {
    char *base;
    size_t size;
    uint8_t byte;
};
// False: there is no block that a collector owns. Where the world runs, `p` must keep its block.
bool pm_col_find(const void *p, struct pm_col_block *block);

#endif
