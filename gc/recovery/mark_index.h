// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What marking knows of the heap: what lies in each stripe of 64 KiB, where the mark bits are, and
// where the heap's bytes are read. It is made when marking begins.
//
//                   at a start              beside the program (beside.h)
//   bytes           the heap                the snapshot
//   mark bits of    the slabs'              a table of their own
//     slabs         populations
//   two populations each block by itself    the slab is one large block, and is not swept
//   or of a kind
//   pinned blocks   marked from the start   scanned when marking begins, and not swept
//
// Beside the program nothing here is shared with it, so marking takes no lock.
#ifndef PM_MARK_INDEX_H
#define PM_MARK_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "blocks/slab.h"
#include "marking/words.h"

// 0: nothing is allocated in the stripe, or a slab of pinned blocks without pointers.
// 1 .. PM_CLASSES: a slab of that class. PM_STRIPE_PINNED: a slab of pinned blocks that may have
// pointers. PM_STRIPE_MIXED: a slab of two populations, or of a kind. Else PM_STRIPE_LARGE + the
// number of the first large block that overlaps the stripe.
#define PM_STRIPE_PINNED 62u
#define PM_STRIPE_MIXED 63u
#define PM_STRIPE_LARGE 64u
_Static_assert(PM_CLASSES < PM_STRIPE_PINNED, "a class of its own");

struct pm_large {
    uint64_t page;
    uint32_t pages;
    uint8_t marked, mixed, pointer_free, pinned;
};

struct pm_mark_index {
    uint64_t base, frontier, stripes; // of the addresses: pm_base, and the end of the last shard
    struct pm_high_halves high;       // of the addresses
    const char *bytes;                // where byte 0 from pm_base is read
    uint32_t *kind;                   // by stripe
    uint8_t *noted;                   // by stripe; 1: a range that begins in it was dropped
    struct pm_slab_bits *bits;        // the mark bits
    struct pm_large *large;           // by rising address
    uint32_t larges;
    uint16_t *holes; // beside the program: pm_vslab.holes as they were; NULL: there are none
    bool beside;
};

extern struct pm_mark_index pm_marks;

static inline uint64_t *pm_mark_bits(uint32_t slab, unsigned cls) {
    return pm_bits_of(pm_marks.bits, slab, cls);
}
static inline uint16_t pm_mark_holes(uint32_t slab) {
    return !pm_marks.beside ? pm_vslabs[slab].holes : pm_marks.holes ? pm_marks.holes[slab] : 0;
}

// The large block at an offset whose stripe has some; NULL: it lies between them.
static inline struct pm_large *pm_mark_large_at(uint64_t offset) {
    uint64_t page = offset >> PM_PAGE_SHIFT;
    uint32_t i = pm_marks.kind[offset >> PM_SLAB_SHIFT] - PM_STRIPE_LARGE;
    while (i < pm_marks.larges && page >= pm_marks.large[i].page + pm_marks.large[i].pages)
        i++;
    return i < pm_marks.larges && page >= pm_marks.large[i].page ? &pm_marks.large[i] : NULL;
}

// Clears all marks. `beside`: there is a snapshot. `held`: held slabs and extents alone
// (blocks/kinds.h).
int pm_mark_index_make(bool beside, bool held, struct pm_error *err);
// The marks of large blocks, into pm_extent.marked.
void pm_mark_index_publish(void);
void pm_mark_index_drop(void);

#endif
