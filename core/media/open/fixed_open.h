// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Finds, locks and opens a heap on fixed media.
#ifndef PM_FIXED_OPEN_H
#define PM_FIXED_OPEN_H

#include "media/backing/fixed.h"

#define PM_NO_FIXED (-1)

// Opens `pm_heap.dir` into *fd, if that is a file or device, and the other media that `more` names,
// PATH[:PATH...] or "". Checks that they are the media of one heap, in their order. The descriptor
// is open on failure, too, or -1. PM_NO_FIXED: it is neither, and nothing was done.
int pm_fixed_find(const char *more, bool readonly, int *fd, struct pm_error *err);
// Locks them in their order. Nobody names them in another one (pm_fixed_find), so two processes
// that wait never wait for each other.
int pm_fixed_lock(enum pm_open_mode mode, bool wait, struct pm_error *err);
// Whether each is still what its path names.
bool pm_fixed_still_there(void);
// With the locks: checks the layouts, maps the heads and gives the parts to pm_heap.
int pm_fixed_open(struct pm_error *err);
// On fixed media: makes durable what layouts and lengths say, whoever has stored it. Comes before
// any store that relies on them.
void pm_fixed_settle(void);

#endif
