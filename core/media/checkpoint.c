// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "checkpoint.h"

#include <string.h>

uint64_t pm_checkpoint_lap = (uint64_t)4 << 20, pm_checkpoint_kept = (uint64_t)64 << 20;

static struct pm_journal_touched touched;
static bool lost;        // a sync has failed, so what was written to files may be lost
static bool retiring;    // the journal is to be emptied before anything is written to it,
static uint64_t retired; // of so many commits
static uint64_t room;    // bytes of the journal that were written once; UINT64_MAX: no more is made

void pm_checkpoint_begin(struct pm_journal *j) {
    j->lap = (struct pm_journal_lap){0};
    touched = (struct pm_journal_touched){0};
    lost = retiring = false;
    room = 0;
}

bool pm_checkpoint_write_through(struct pm_journal *j, const struct pm_journal_found *commit) {
    return pm_journal_write_through(j->io, j->group, commit, false, &touched);
}

// The kernel reports a failed write once, and takes the page for written from then on.
static bool sync_files(struct pm_journal *j) {
    struct pm_journal_found all = pm_journal_found_lap(j);
    if (lost && !pm_checkpoint_write_through(j, &all))
        return false;
    lost = !pm_journal_sync_touched(j->io, &touched);
    return !lost;
}

static bool empty(struct pm_journal *j) {
    retiring = !pm_journal_retire(j->io, retired);
    room = retiring ? room : 0;
    return !retiring;
}

bool pm_checkpoint_make(struct pm_journal *j) { return sync_files(j) && pm_journal_end_lap(j); }

bool pm_checkpoint_retire(struct pm_journal *j) {
    if (!sync_files(j))
        return false;
    retired = j->lap.commits;
    j->lap = (struct pm_journal_lap){0};
    return empty(j);
}

bool pm_checkpoint_prepare(struct pm_journal *j) {
    if (retiring && !empty(j))
        return false;
    return (!lost && j->lap.end <= pm_checkpoint_lap) || pm_checkpoint_make(j);
}

void pm_checkpoint_cut(struct pm_journal *j) {
    if (j->lap.end > pm_checkpoint_kept && pm_checkpoint_make(j) &&
        j->io->set_length(PM_JOURNAL_SELF, pm_checkpoint_kept))
        room = pm_checkpoint_kept;
}

// ---- room ---------------------------------------------------------------------------------------

#define LEAST_ROOM ((uint64_t)64 << 10)

void pm_checkpoint_make_room(struct pm_journal *j) {
    if (j->at <= room)
        return;
    uint64_t at = j->at, wanted = at < LEAST_ROOM ? LEAST_ROOM : 2 * at;
    room = at;
    if (wanted > pm_checkpoint_lap)
        wanted = pm_checkpoint_lap;
    if (at >= wanted)
        return;
    const size_t most = PM_JOURNAL_BUFFER - sizeof *j->group;
    memset(j->group + 1, 0, most);
    for (uint64_t part; at < wanted; at += part) {
        part = wanted - at < most ? wanted - at : most;
        if (!j->io->write(PM_JOURNAL_SELF, j->group + 1, part, at)) {
            room = UINT64_MAX; // a full medium: what is left of it is not for this
            return;
        }
    }
    room = wanted;
}
