// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Checks the structure of the whole heap. `pmalloc-recover --check` and every crash test call it.
//
//   extents     tile the range without gap or overlap, up to the end of the data file
//   page map    names each extent at its first and last page, and nothing else
//   log         its live entries are exactly the active extents
//   free sets   have exactly the free extents, each in its list
//   slabs       header on media, vslab, free bits and index table agree; tags stand only at blocks
//               that are not free
//   arenas      list exactly the slabs that have free blocks
#ifndef PM_VERIFY_H
#define PM_VERIFY_H

#include <stdbool.h>

#include "base/message.h"

// PM_OK; or PM_DAMAGE, and `err` says what disagrees and where. `swept`: recovery was allowed to
// write and has handed the slabs to arenas. Otherwise arenas and tags are not checked. No other
// thread may allocate. Takes time and page cache in proportion to the heap in use.
int pm_verify(bool swept, struct pm_error *err);

#endif
