// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heap's structure, checked as a whole: what `pmalloc-recover --check` trusts and every crash test runs.
//
//   extents     tile the range without gap or overlap; used + free = the data file
//   page map    names each extent at its first and last page, and nothing else
//   log         its live entries are exactly the active extents
//   free sets   hold exactly the free extents, each in its list
//   slabs       header, volatile header and bitmap agree; tags stand at live blocks only
//   arenas      list exactly the slabs that have free blocks
#ifndef PM_VERIFY_H
#define PM_VERIFY_H

#include <stdbool.h>

#include "message.h"

// PM_OK, or PM_DAMAGE and what disagrees, where. `swept`: recovery has handed the slabs to arenas (it was allowed
// to write); otherwise arenas and tags are left out. No other thread may allocate. Takes time and page cache in
// proportion to the heap in use.
int pm_verify(bool swept, struct pm_error *err);

#endif
