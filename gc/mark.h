// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Parallel conservative marking. Every aligned word that, taken as an address, lies anywhere in an allocated
// extent's or slab block's bytes keeps that object. Marks are bits of the slabs' own bitmaps (pm_vslab.free,
// with the meaning turned round until the sweep) and pm_extent.marked, so marking needs no memory that
// grows with the heap except an index of 4 bytes per 64 KiB.
#ifndef PMALLOC_GC_MARK_H
#define PMALLOC_GC_MARK_H

#include <stdbool.h>
#include <stdint.h>

#include "message.h"

// Words of root memory to start from; `bytes` need not lie in the heap. Called before pm_mark_run. `restored`: whether a
// program will find them in its variables.
void pm_mark_root(const void *bytes, uint64_t len, bool restored, void *unused);
// From now on, words in what is found alive are counted that point into two ranges of addresses ...
void pm_mark_watch(uint64_t a, uint64_t a_len, uint64_t b, uint64_t b_len);
// ... so many for each. False: nothing was marked since.
bool pm_mark_watched(uint64_t words[2]);
// Prepares marking of the heap as adopted (extents and slabs known, bitmaps cleared). `markers` threads.
int pm_mark_begin(unsigned markers, struct pm_error *err);
// Marks everything reachable. Returns how often a mark stack overflowed.
uint64_t pm_mark_run(void);
void pm_mark_end(void);

#endif
