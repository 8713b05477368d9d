// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Allocation bitmaps on media (bitmaps.0): written as the last step but one of a clean close, for the next
// opening under PMALLOC_COLLECT=crash and for telling exactly what leaked.
#ifndef PM_BITMAPS_H
#define PM_BITMAPS_H

#include <stdbool.h>
#include <stdint.h>

// Writes the allocation state of every slab and ties it to the state page. No other thread may allocate.
bool pm_bitmaps_write(void);
// Reads the bitmaps of the last clean close; `each` gets a slab's words (bit set = allocated), which
// it may keep no pointer to; of a slab that morphs twice, then with PM_BITMAP_OLD in `cls`. False when there are none or they are damaged; then `each` has not been called.
bool pm_bitmaps_read(void (*each)(uint32_t slab, unsigned cls, const uint64_t *words, void *arg),
                     void *arg);

#endif
