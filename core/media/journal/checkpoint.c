// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "checkpoint.h"

#include <errno.h>
#include <string.h>

#include "base/os.h"
#include "page_sums.h"

uint64_t pm_checkpoint_lap = (uint64_t)32 << 20, pm_checkpoint_kept = (uint64_t)64 << 20;
uint64_t pm_checkpoint_applied;
uint32_t pm_checkpoint_mark;

static struct pm_journal_touched touched;
static bool lost;         // a sync has failed, so what was written to files may be lost
static int error;         // of the last sync of the files; 0: it was good
static bool ending;       // a lap ends, and that is not durable
static uint64_t retry_at; // if lost: the end of a lap at which its files are synced again
static bool hurried;      // see pm_checkpoint_hurry()
static struct {
    uint64_t took, ended; // nanoseconds: the last checkpoint
    uint64_t commits;     // of its lap
    uint64_t compared;    // pages, since
} last;
// The end of the journal, by a commit that has failed. It is cut off before the next one.
static bool torn;
static bool retiring; // the journal is to be emptied before anything is written to it,
static bool retired;  // which had commits
static uint64_t room; // bytes of the journal that were written once; UINT64_MAX: no more is made

void pm_checkpoint_begin(struct pm_journal *j, uint32_t mark) {
    j->lap = (struct pm_journal_lap){0};
    touched = (struct pm_journal_touched){0};
    pm_checkpoint_applied = 0;
    pm_checkpoint_mark = j->follows = mark;
    lost = ending = hurried = torn = retiring = false;
    error = 0;
    room = 0;
    memset(&last, 0, sizeof last);
    pm_sums_forget();
}

static bool note_applied(struct pm_journal *j, uint64_t commits) {
    if (!pm_journal_note_applied(j->io, commits, &touched))
        return false;
    pm_checkpoint_applied = pm_journal_applied_word(commits);
    return true;
}

// Also where the lap goes on, because a sync fails: the mark of a lap makes opening accept that
// one, too.
static bool note_held(struct pm_journal *j) {
    if (!pm_journal_note_held(j->io, j->lap.id, &touched))
        return false;
    pm_checkpoint_applied = pm_journal_applied_word(0);
    pm_checkpoint_mark = j->lap.id ? pm_journal_mark(j->lap.id) : pm_checkpoint_mark;
    return true;
}

bool pm_checkpoint_write_through(struct pm_journal *j, const struct pm_journal_found *commit) {
    return pm_journal_write_last(j, commit, &touched) && note_applied(j, j->lap.commits);
}

bool pm_checkpoint_is_durable(void) {
    bool any = lost;
    for (unsigned file = 0; file < PM_JOURNAL_FILES; file++)
        any |= touched.file[file];
    return !any;
}

// The kernel reports a failed write once, and takes the page for written from then on. So after a
// sync that has failed, all pages of the lap are written once more. Each gets what it has already:
// the program may see the file there.
static bool try_sync(struct pm_journal *j) {
    struct pm_journal_found all = pm_journal_found_lap(j);
    if (pm_checkpoint_is_durable())
        return true;
    bool again = lost;
    lost = true; // until all are synced
    j->kept &= !again;
    if (again && !pm_journal_write_again(j->io, j->group, &all, &touched))
        return false;
    if (!note_held(j) || !pm_journal_sync_touched(j->io, &touched))
        return false;
    lost = false;
    return true;
}

static bool sync_files(struct pm_journal *j) {
    error = try_sync(j) ? 0 : errno;
    if (!error)
        pm_sums_trim();
    return !error;
}

int pm_checkpoint_error(void) { return error; }

static bool empty(struct pm_journal *j) {
    retiring = !pm_journal_retire(j->io, retired);
    room = retiring ? room : 0;
    return !retiring;
}

// Its pages that could not be written must not be the kernel's any more when the next commit comes
// to lie there (pm_os_write_anew()).
static bool cut_end(struct pm_journal *j) {
    torn = !j->io->set_length(PM_JOURNAL_SELF, j->lap.end);
    room = j->lap.end < room ? j->lap.end : room;
    return !torn;
}

// Its header may be gone from the journal before that is durable. Until then no commit may follow
// in the lap: it would not be found.
static bool end_lap(struct pm_journal *j) {
    ending = !pm_journal_end_lap(j);
    j->follows = ending ? j->follows : pm_checkpoint_mark;
    return !ending;
}

// A checkpoint that took longer was held up by something else.
#define TOOK_MOST ((uint64_t)1000000000)

// Whether the files are synced. Whether the lap has ended, too, says `ending`.
static bool make_timed(struct pm_journal *j) {
    bool any = !pm_checkpoint_is_durable();
    uint64_t began = pm_os_now_ns(), commits = j->lap.commits;
    if (!sync_files(j))
        return false;
    end_lap(j);
    last.ended = pm_os_now_ns();
    last.compared = 0;
    if (any) {
        last.took = last.ended - began < TOOK_MOST ? last.ended - began : TOOK_MOST;
        last.commits = commits;
    }
    return true;
}

bool pm_checkpoint_make(struct pm_journal *j) { return make_timed(j) && !ending; }

bool pm_checkpoint_retire(struct pm_journal *j) {
    torn = true;
    if (!sync_files(j))
        return false;
    retired = (retiring && retired) || j->lap.commits != 0;
    j->follows = pm_checkpoint_mark;
    j->lap = (struct pm_journal_lap){0};
    ending = torn = false;
    return empty(j);
}

void pm_checkpoint_hurry(struct pm_journal *j) { hurried = j->lap.end != 0 && !lost; }

// ---- when it pays -------------------------------------------------------------------------------

// What it costs if a page is given back, and stored to again.
#define RETURN_NS 2500
// So many copies are worth a checkpoint for their memory, too, if that takes 1/SHARE of the time.
#define MANY 256u
#define SHARE 20

void pm_checkpoint_compared(uint64_t pages) { last.compared += pages; }

bool pm_checkpoint_pays(uint64_t kept) {
    bool by_time = PM_COMPARE_NS * last.compared >= last.took + RETURN_NS * kept;
    bool by_memory = kept > MANY && (pm_os_now_ns() - last.ended) / SHARE >= last.took;
    return kept > PM_CHECKPOINT_FEW && (by_time || by_memory);
}

uint64_t pm_checkpoint_worth(void) {
    uint64_t laps = pm_checkpoint_lap / PM_CHECKPOINT_LAP_LEAST;
    return laps < last.commits ? laps : last.commits;
}

// ---- before a commit ----------------------------------------------------------------------------

// Where files cannot be synced, the lap goes on: the journal has it all. They are synced again when
// it is longer by a short lap.
bool pm_checkpoint_prepare(struct pm_journal *j) {
    if ((retiring && !empty(j)) || (torn && !cut_end(j)))
        return false;
    if (!ending && !hurried && j->lap.end <= (lost ? retry_at : pm_checkpoint_lap))
        return true;
    hurried = false;
    if (make_timed(j))
        return !ending;
    retry_at = j->lap.end + (pm_checkpoint_lap < PM_CHECKPOINT_LAP_LEAST ? pm_checkpoint_lap
                                                                         : PM_CHECKPOINT_LAP_LEAST);
    return true;
}

void pm_checkpoint_cut(struct pm_journal *j) {
    if (j->lap.end > pm_checkpoint_kept && !lost && pm_checkpoint_make(j) &&
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
    if (wanted > at + PM_CHECKPOINT_LAP_LEAST)
        wanted = at + PM_CHECKPOINT_LAP_LEAST; // a commit waits for it
    if (wanted > pm_checkpoint_lap)
        wanted = pm_checkpoint_lap;
    if (at >= wanted)
        return;
    const size_t most = PM_JOURNAL_BUFFER;
    j->kept = false;
    memset(j->first, 0, most);
    for (uint64_t part; at < wanted; at += part) {
        part = wanted - at < most ? wanted - at : most;
        if (!j->io->write(PM_JOURNAL_SELF, j->first, part, at)) {
            room = UINT64_MAX; // a full medium: what is left of it is not for this
            return;
        }
    }
    room = wanted;
}
