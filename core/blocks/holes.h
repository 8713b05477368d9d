// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Holes: pages of a slab that have no space, because no block in use lies on them.
//
//   page     | 0   | 1   | 2   | 3   | ...            a slab of 1 KiB blocks
//   blocks    . . #   . . . . . . . . . . .           one is in use
//   space      yes    --    --    --   ...            the holes: st_blocks falls
//
// Holes are punched into slabs of classes of PM_HOLES_FROM bytes and more, while they have one
// population: a page has many smaller blocks, so hardly one page is free. And the first slab of a
// bin begins with holes alone, whatever its class, if it lies in the first 4 MiB of its shard
// (PM_BARE_END): a small program uses a few blocks of many classes.
//
// A block is handed out only after all its pages have space. If the medium is full, that request
// goes on to other slabs, and then gets ENOMEM; no store of the program meets a missing page.
// Punching a page loses nothing. A block that is in use, or in a thread cache, is never on it. What
// a stale word names there is a free block; its bytes were garbage, and are zeroes now. So a cut
// before or after the punch leaves the same heap, and nothing of it stands on media.
//
// A slab's knowledge of its pages is volatile:
//
//   holes      pages that may have no space. After recovery: pages without data. On tmpfs these
//              are holes, or pages that have space and were never written; nobody can tell which.
//              Or nobody has asked, since tmpfs looks at every page for an answer: then all pages.
//   punched    of these, the pages that this process has punched. No block in use is on them.
//
// A block in use may lie on such a page: it was never written before the crash, or only a stale
// word keeps it alive. Nobody writes to a heap while it is recovered, so recovery does not read
// these pages (extent_holes.h says why). A collection in the living process reads every block.
//
// Lock: the slab's bin, as for struct pm_vslab.
#ifndef PM_HOLES_H
#define PM_HOLES_H

#include "pages/extent.h"
#include "slab.h"

#define PM_HOLES_FROM 512u // bytes of a block

static inline bool pm_holes_punchable(const struct pm_vslab *v) {
    return v->size_class && !v->old_class && pm_classes[v->size_class].size >= PM_HOLES_FROM;
}
static inline bool pm_holes_possible(const struct pm_vslab *v) {
    return pm_holes_punchable(v) ||
           (v->size_class && !v->old_class && !pm_kind_is_pinned(v->kind) &&
            pm_extent_may_be_bare((uint64_t)(v - pm_vslabs) << PM_SLAB_SHIFT));
}

// Whether the slab has a free block all of whose pages have space. Else gives their space to the
// pages of some free blocks, enough for `want` if possible. False: there is no free block, or the
// medium is full.
bool pm_holes_ready(uint32_t slab, unsigned want);
// The first part of that: gives no space to any page.
bool pm_holes_spared(uint32_t slab);
// As pm_slab_pop(), and leaves blocks on holes alone.
unsigned pm_holes_pop(uint32_t slab, void **blocks, unsigned want);
// Gives all pages of the slab their space. False: the medium is full.
bool pm_holes_fill(uint32_t slab);
// Punches the pages without a block in use, if these are `least` at least that are no holes yet.
// Returns how many it has punched.
unsigned pm_holes_punch(uint32_t slab, unsigned least);
// The pages on which blocks in use lie.
uint16_t pm_holes_used(const struct pm_vslab *v);

// ---- recovery (single-threaded) ----
// Finds the pages without data, when extents and slabs have been adopted: of all slabs, or of those
// that are held.
void pm_holes_find(bool held);
extern bool pm_holes_found; // there is one
// Nobody has asked: each page may be one.
void pm_holes_suppose(uint32_t slab);

#endif
