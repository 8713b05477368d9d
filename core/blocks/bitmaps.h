// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Allocation bitmaps on media (bitmaps.0). A clean close writes them before the close record and
// "clean". The next opening reads them under PMALLOC_COLLECT=crash, and to count exactly what
// leaked.
#ifndef PM_BITMAPS_H
#define PM_BITMAPS_H

#include <stdbool.h>
#include <stdint.h>

#include "population.h"

// Writes which blocks of every slab are in use, and puts the file's tag into the state page. Where
// there is too little room it does neither: recovery then marks after the clean close, too. False:
// this process may not write to the heap's directory. No other thread may allocate.
bool pm_bitmaps_write(void);
// Called with what a record says about a slab's population. A set bit: the block is in use. The
// pointers are valid only during the call.
typedef void pm_bitmaps_fn(const struct pm_population *p, const uint64_t *words, void *arg);
// Reads the bitmaps of the last clean close. Calls `each` for every record whose slab still has
// such a population. False: there are no bitmaps, or they are damaged; `each` has not been called
// then, because all of the file is checked first.
bool pm_bitmaps_read(pm_bitmaps_fn *each, void *arg);

#endif
