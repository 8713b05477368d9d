// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How the commits of the open heap reach its files for good. A commit in force is written to the
// files, which are not synced; the commit is durable in the journal. A checkpoint syncs them. It is
// made when the journal is long, before it is cut or retired, before its space is needed, and when
// copies of pages that it would give back have cost as much.
//
//   journal   |<-- the lap ------------->|<-- zeroes: room for the next ones -->|
//              commit  commit  ... commit
//
// The room is written in advance, so that the sync of a commit has no metadata to write.
//
// One thread at a time, as for commits.
#ifndef PM_CHECKPOINT_H
#define PM_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "journal.h"

// A lap ends before the commit that would begin behind this many bytes. The longer, the fewer
// checkpoints, and the more an opening after a kill has to apply.
extern uint64_t pm_checkpoint_lap;
#define PM_CHECKPOINT_LAP_LEAST ((uint64_t)4 << 20) // where a longer one is of no use, or no room
// The journal keeps its space for the next lap, up to this many bytes.
extern uint64_t pm_checkpoint_kept;

// The values of pm_state.applied and pm_state.lap in the superblock's file. Memory must have the
// same before the next commit is taken, or that would bring an old number into the file.
extern uint64_t pm_checkpoint_applied;
extern uint32_t pm_checkpoint_mark;

// For a heap whose journal was just made, and whose superblock has 0 as pm_state.applied, and
// `mark` as pm_state.lap.
void pm_checkpoint_begin(struct pm_journal *j, uint32_t mark);
// Before a commit: whether one may be made. False, with errno.
bool pm_checkpoint_prepare(struct pm_journal *j);
// The next pm_checkpoint_prepare() makes a checkpoint, unless syncs fail.
void pm_checkpoint_hurry(struct pm_journal *j);
// A commit has compared so many copies of pages in vain, as the files have the same. None of them
// is given back before a checkpoint.
void pm_checkpoint_compared(uint64_t pages);
// So many are kept. Whether they have cost as much as a checkpoint by now. Never for a few.
#define PM_CHECKPOINT_FEW 64u
bool pm_checkpoint_pays(uint64_t kept);
// How many of the shortest laps the last one stood for: as much more may be given back after it.
uint64_t pm_checkpoint_worth(void);
// The errno of the sync that keeps a lap from ending; 0: none does.
int pm_checkpoint_error(void);
// Makes room behind what was just written to the journal, which is not synced yet.
void pm_checkpoint_make_room(struct pm_journal *j);
// Brings the commit into the files. False, with errno: it may be tried again.
bool pm_checkpoint_write_through(struct pm_journal *j, const struct pm_journal_found *commit);
// Whether the files have, durably, all that was written through. Where they do not, the kernel may
// drop a page that it could not write, and show an older one.
bool pm_checkpoint_is_durable(void);
// All commits become durable in the files, and the next one goes to the journal's start.
bool pm_checkpoint_make(struct pm_journal *j);
// The same, and the journal becomes empty, durably.
bool pm_checkpoint_retire(struct pm_journal *j);
// Where the journal is longer than it may stay, a checkpoint is made and it is cut.
void pm_checkpoint_cut(struct pm_journal *j);

#endif
