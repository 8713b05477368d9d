// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_COLLECT=api: a start keeps all that was allocated, and holds it (blocks/kinds.h). The
// program may first replay a log of its own, which has pointers that no root leads to. Then it
// calls pmalloc_collect(), and what is still unreachable is freed.
//
//   1  the data is written back, as recovery does it before it frees
//   2  mark from the roots, and from every block that the program has allocated since the start
//   3  held blocks that are neither marked nor freed already are freed
//   4  what is left is held no more: its free blocks are handed out from now on
//
// A crash on the way is one of a heap in use.
#ifndef PM_COLLECT_H
#define PM_COLLECT_H

#include "recover.h"

// What has to know what dies: the library that stands in for libgc (preload/boehm/links.c). NULL
// elsewhere.
struct pm_collect_watcher {
    void (*begin)(void); // before the first lock is taken
    // All is marked, and nothing is freed yet.
    void (*marked)(bool (*is_alive)(const void *p));
    void (*end)(void);
};
extern const struct pm_collect_watcher *pm_collect_watcher;

// The heap is open for writing, and its stores go to media. No other thread allocates or frees
// meanwhile. Without held memory it does nothing. `live_*`: of held memory.
int pm_collect(const struct pm_mark_options *how, struct pm_recovery *found, struct pm_error *err);

#endif
