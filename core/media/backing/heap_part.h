// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The files of the open heap, by the numbers that journals and fixed media give them.
#ifndef PM_HEAP_PART_H
#define PM_HEAP_PART_H

#include "media/heap.h"

// The file; NULL: there is none of that number (pm_journal_file()).
struct pm_file *pm_heap_part(unsigned number);

#endif
