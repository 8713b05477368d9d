// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The instant of a heap in use: what a kill of its process at that moment would leave.
//
//   live_open   the files; the kernel begins to record stores     the program runs
//   live_take   all is looked at, then what was stored to         the program runs
//               meanwhile, until that is little
//               the rest                                          its threads are halted
//
// Where the kernel keeps no record, everything is compared while the threads are halted. Files that
// are small are always compared.
#ifndef PM_TOOLS_BACKUP_LIVE_H
#define PM_TOOLS_BACKUP_LIVE_H

#include "backup_image.h"
#include "backup_source.h"
#include "recovery/mark.h"

// Opens the heap `heap` that another process has open, after source_open() has found that. *s gets
// its files and s->owner. The heap is not checked: it was, when that process opened it.
// PM_NEEDS_RECOVERY: as below.
int live_open(const char *heap, struct source *s, struct pm_error *err);

// Fills s->image with what the heap has at one instant. `base` is what the backup has, `dir` its
// directory. `equal`: the heap was like that after live_open(), if nothing has been stored to it
// since. PM_NEEDS_RECOVERY: the process has ended or has given up the heap; begin anew.
int live_take(struct source *s, const struct kept *base, int dir, bool equal, pm_progress *progress,
              struct pm_error *err);

#endif
