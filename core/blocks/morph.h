// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Slab morphing: a slab with few blocks in use takes up blocks of another class beside them
// (PMAlloc, section 5.2).
//
//   slab_before    blocks of class A, few of them in use
//   slab_in        of class B; the old blocks (of A, in use at the morph) stay
//   slab_after     of class B like any other: the last old block has been freed
//
//        A A A A A A A A A A A A A        before the morph; # in use, by the program or a tcache
//        . # . . . . # . . . . . .
//       |  B  |  B  |  B  |  B  |         after it; x blocked: lies on an old block, not handed out
//           x           x
// A listed old block blocks the blocks of B that share a byte with it (population.h). So a pointer
// into the slab means one block only, at whatever moment the power fails: the listed old block at
// that place if there is one, else the block of B. Freeing an old block changes nothing on media.
// When the slab has no free block left and is asked for one, pm_morph_sync() clears the bits of all
// old blocks freed since the last time. Only after that their bytes go to B.
//
// Each step is failure-atomic. A crash leaves nothing to undo or to finish. "|" means: everything
// before it is durable before anything after it starts.
//
//   morph     table in lines that no header names | current = (B, table) | blocks of B handed out
//   sync      bits of the table cleared, word by word | blocks of B that they blocked handed out
//   release   current = (B, no table) | all blocks of B handed out, the table's lines used again
//
// `current` is one 8-byte word, so on media a slab is always in exactly one of the three states.
// Lines of morph.0 that no header names are free.
//
// Lock: the bin of the slab's arena and current class. pm_morph() moves the slab from one bin to
// another; the caller holds the locks of both.
#ifndef PM_MORPH_H
#define PM_MORPH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "population.h"

// Reserves the tables of this file, of population.c and of morph_media.c. Reads PMALLOC_MORPH.
bool pm_morph_init(void);

// Set while threads are held: from here on no slab morphs. For who looks up blocks in use beside
// them: a slab that morphs has none for a moment.
extern _Atomic bool pm_morphs_wait;

// Counts since the process began. `begun`: slabs that morphed. `ended`: slabs that reached
// slab_after; an empty slab that morphs is there at once. `syncs`: syncs and releases.
struct pm_morph_counters {
    _Atomic uint64_t begun, ended, syncs;
};
extern struct pm_morph_counters pm_morph_counters;

// By class: a slab with this many free blocks or more is sparse, that is, less full than
// PMALLOC_MORPH. Blocks in thread caches are taken for used: to tell them from the program's blocks
// would need a look at other threads' caches. What a cache keeps of a class is bounded (tcache.c,
// "capacities"), so only some slabs look fuller than they are.
extern uint16_t pm_sparse_free[PM_CLASSES + 1];
// By class: with fewer free blocks than this a slab is neither sparse nor empty.
extern uint16_t pm_quiet_below[PM_CLASSES + 1];
static inline bool pm_slab_is_sparse(const struct pm_vslab *v) {
    return !v->old_class && v->free_count >= pm_sparse_free[v->size_class] &&
           pm_kind_may_morph(v->kind);
}
static inline bool pm_slab_is_empty(const struct pm_vslab *v) {
    return !v->old_class && v->free_count == pm_classes[v->size_class].blocks;
}

// Makes a slab one of class `cls` and of an arena. False: too little of it would be free for that
// class, or there is no room for an index table. Nothing has changed then.
bool pm_morph(uint32_t slab, uint16_t arena, unsigned cls);
// Takes back an old block.
void pm_morph_free(uint32_t slab, const void *block);
// Whether an eighth of the listed old blocks have been freed: then a pm_morph_sync() is worth its
// flush.
static inline bool pm_morph_is_due(const struct pm_vslab *v) {
    unsigned gone = (unsigned)(v->old_listed - v->old_live);
    return v->old_class && gone && gone * 8 >= v->old_listed;
}
// Whether any listed old block has been freed.
static inline bool pm_morph_may_sync(const struct pm_vslab *v) {
    return v->old_live != v->old_listed;
}
// Takes freed old blocks out of the table and gives their bytes to the current class.
void pm_morph_sync(uint32_t slab);
// The same for slabs of one shard that may be synced: they share their flushes.
void pm_morph_sync_all(const uint32_t *slab, unsigned count);

// ---- recovery (single-threaded) ----
// Called after pm_slab_adopt(). If the slab's header names an index table, every block listed in it
// becomes a live old block.
int pm_morph_adopt(uint32_t slab, struct pm_error *err);

#endif
