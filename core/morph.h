// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Slab morphing: a slab with few blocks in use takes up blocks of another class beside them (PMAlloc, section 5.2).
//
//   slab_before    blocks of class A, few of them in use
//   slab_in        of class B; the "old" blocks, those of A in use at the morph, stay where they are
//   slab_after     of class B like any other: the last old block is gone
//
//        A A A A A A A A A A A A A        before the morph; # in use, in a tcache or with the program
//        . # . . . . # . . . . . .
//       |  B  |  B  |  B  |  B  |         after it; x blocked: lies on an old block, is not handed out
//           x           x
//
// Two sets of old blocks, live within listed:
//
//   live      not freed yet; volatile, so a free costs no flush
//   listed    what the index table on media says
//
// Invariant: a block of B that shares a byte with a listed old block is blocked. So a pointer into the slab means one
// block only, whenever the power fails: the old one where one is listed, else that of B. What was freed leaves the
// table many at a time, when the slab is asked for blocks (pm_morph_sync), and only then its bytes go to B.
//
// Failure-atomic, without anything to undo or to finish; "|" is a flush and fence:
//
//   morph     table in lines that no header names | now = (B, table) | blocks of B may leave
//   sync      bits of the table cleared, word by word | blocks of B that they blocked may leave
//   release   now = (B, no table) | all blocks of B may leave, the table's lines may be used again
//
// `now` is one 8-byte word, so a slab is before, in or after; a table that no header names is free space.
//
// Lock: the bin of the slab's arena and present class; pm_morph() changes bins and has both.
#ifndef PM_MORPH_H
#define PM_MORPH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "slab.h"

// Reserves the tables and takes over the setting.
bool pm_morph_init(void);
// As pm_slab_cover().
bool pm_morph_cover(size_t slabs);

// Since the process began: slabs that became slab_in (or slab_after at once, being empty), and slab_after.
struct pm_morph_counters {
    _Atomic uint64_t begun, ended, syncs;
};
extern struct pm_morph_counters pm_morph_counters;

// Free blocks from which on a slab of the class is sparse: less full than PMALLOC_MORPH. Blocks in tcaches count as
// used here as everywhere: they cannot be told from the program's without asking other threads. A cache keeps at most
// one slab's worth of a class (tcache_cap), so it hides at most a few slabs, and never one that it has not touched.
extern uint16_t pm_sparse_free[PM_CLASSES + 1];
extern uint16_t
    pm_quiet_below[PM_CLASSES + 1]; // with fewer free blocks a slab is neither sparse nor empty
static inline bool pm_slab_is_sparse(const struct pm_vslab *v) {
    return !v->old_class && v->free_count >= pm_sparse_free[v->size_class];
}
static inline bool pm_slab_is_empty(const struct pm_vslab *v) {
    return !v->old_class && v->free_count == pm_classes[v->size_class].blocks;
}

// Makes a slab one of class `cls`. False: too little would be free in it, or no table; then nothing has changed.
bool pm_morph(uint32_t slab, unsigned cls);
// Returns an old block.
void pm_morph_free(uint32_t slab, const void *block);
// Whether enough old blocks were freed that a pm_morph_sync() is worth its flush.
static inline bool pm_morph_is_due(const struct pm_vslab *v) {
    unsigned gone = (unsigned)(v->old_listed - v->old_live);
    return v->old_class && gone && gone * 8 >= v->old_listed;
}
// Takes freed old blocks out of the table and gives their bytes to the present class.
void pm_morph_sync(uint32_t slab);

// The sets, and what a slab has beside them; only while old_class is not 0. They lie behind the bits that `free`
// needs for the present class, or, where the blocks are too small for that, in a table apart.
uint64_t *pm_morph_live(const struct pm_vslab *v);
uint64_t *pm_morph_listed(const struct pm_vslab *v);
// Bit i: block i of the present class is blocked. Returns how many are.
unsigned pm_morph_blocked(const struct pm_vslab *v, uint64_t blocked[PM_BITMAP_WORDS]);

// The block that byte `offset` of the slab belongs to, by the invariant above; false: to none that can be in use.
struct pm_morph_block {
    unsigned cls, index;
    bool old;
};
bool pm_morph_find(const struct pm_vslab *v, uint32_t offset, struct pm_morph_block *block);

// ---- recovery (single-threaded) ----
// A slab whose header names a table: fills the volatile side with every listed block live, every other block free.
int pm_morph_adopt(uint32_t slab, uint32_t line, struct pm_error *err);
// Takes `live` and `free` for marks and turns them into what they are else.
void pm_morph_swept(struct pm_vslab *v);

#endif
