// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What pmalloc-info --leaks runs in this process, from outside (live/leaks_door.h): the report of
// PMALLOC_LEAKS for this moment, into a piece of memory of the tool's. No setting is needed. It
// takes no lock and stores nothing but volatile notes of PMAlloc's own.
#ifndef PM_LEAKS_ASKED_H
#define PM_LEAKS_ASKED_H

// From here on the tool may ask. Called when the heap is open.
void pm_leaks_open_door(void);

#endif
