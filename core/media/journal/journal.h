// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The journal: how all changes of a commit reach the heap's files, or none does. It is a redo
// journal in one file, and a commit takes one sync:
//
//   begin, add ..., end --> sync of the journal --> written through: into the files, not synced
//                           it is in force          and the next commit may follow, behind it
//   a lap ends          --> sync of the files   --> its first header zeroed, sync of the journal
//   (checkpoint.h)          they have it all        the journal may be written from its start
//
//   a cut before that sync   some group is torn: the commit is dropped, and the ones before it in
//                            the journal are applied again.
//   a cut after that         the same, with this commit as the last. The files have, durably, what
//                            the commits before the lap said, and of each page that a commit of the
//                            lap changes anything at all. So all of the lap are applied, in order.
//   a cut at a lap's end     the lap is whole, and changes nothing; or it has no start, so nothing
//                            is applied. The files have it all.
//
// Before files change in another way, the journal is retired.
#ifndef PM_JOURNAL_H
#define PM_JOURNAL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "journal_format.h"

#define PM_JOURNAL_ENDS ENODATA

// The calls that the journal makes on files; false and errno where one fails. The simulators have
// their own.
struct pm_journal_io {
    bool (*write)(unsigned file, const void *from, size_t len, uint64_t at);
    // PM_JOURNAL_ENDS: the file ends before that. Any other errno says nothing of what is there.
    bool (*read)(unsigned file, void *to, size_t len, uint64_t at);
    bool (*zero)(unsigned file, uint64_t at, uint64_t len); // within the file's length, or not
    bool (*set_length)(unsigned file, uint64_t bytes);
    bool (*sync)(unsigned file); // contents and length
    // A write of whole pages after a sync has failed, or may have: the kernel's own copies of them
    // may not be what it writes. NULL: as any other.
    bool (*write_anew)(unsigned file, const void *from, size_t len, uint64_t at);
    // Whether the file lies in memory, where a write is all that can be done. NULL: it does not.
    bool (*in_memory)(unsigned file);
};

static inline bool pm_journal_anew(const struct pm_journal_io *io, unsigned file, const void *from,
                                   size_t len, uint64_t at) {
    return (io->write_anew ? io->write_anew : io->write)(file, from, len, at);
}

// ---- writing ------------------------------------------------------------------------------------

// The commits in the journal that are in force.
struct pm_journal_lap {
    uint64_t id; // 0: there are none, and the next one begins a lap
    uint64_t commits, groups;
    uint64_t end;    // in the file
    uint32_t before; // crc of the last group
};

// A commit that is being made. Its groups lie in memory of the caller's, one behind the other as in
// the journal, and are written at the end; or earlier, if there is no room for one more.
struct pm_journal {
    const struct pm_journal_io *io;
    struct pm_journal_group *first;  // the memory
    size_t room;                     // its bytes: at least PM_JOURNAL_BUFFER
    size_t reached;                  // how many of them were used, since the caller set it to 0
    struct pm_journal_group *group;  // the last one
    uint32_t most;                   // pages in a group: at most PM_JOURNAL_PAGES
    struct pm_journal_lap lap, next; // before this commit, and with it
    uint32_t follows;                // pm_state.lap when the lap began
    uint64_t at;                     // where the first of these groups goes
    uint32_t before;                 // crc of the one before it
    uint64_t groups, pages;          // of the commit
    uint32_t held;                   // for the last group: see journal_format.h
    bool forced, amid;               // the same
    bool any;                        // something was added
    bool kept;                       // since its end, memory has all of the commit still
    bool failed;                     // a write has failed; errno was `error`
    int error;
    // Of the process and all its commits from here on, if `counted`; also for the last group.
    bool counted;
    struct pm_instants instants;
    struct pm_pauses pauses;
};

// The bytes that a group needs at most.
#define PM_JOURNAL_BUFFER ((size_t)(1 + PM_JOURNAL_PAGES) * PM_PAGE_SIZE)

// `epoch` is larger than the epochs of all commits that were begun before.
void pm_journal_begin(struct pm_journal *j, const uint8_t uuid[16], uint64_t epoch, uint64_t time);
// Adds pages of a file. Their contents are taken over at once.
void pm_journal_add_pages(struct pm_journal *j, unsigned file, uint64_t first, const void *from,
                          uint64_t pages);
// Adds pages that have zeroes only.
void pm_journal_add_zeroes(struct pm_journal *j, unsigned file, uint64_t first, uint64_t pages);
// Adds the length that the file has under this commit.
void pm_journal_add_length(struct pm_journal *j, unsigned file, uint64_t bytes);
// Writes what memory has so far: all of it is free again.
void pm_journal_write_out(struct pm_journal *j);
// Whether anything was added.
bool pm_journal_has_any(const struct pm_journal *j);
// Writes what memory has. False, with errno: this or an earlier write has failed, so this is no
// commit. On true the caller syncs the journal.
bool pm_journal_end(struct pm_journal *j);
// After that sync: the commit is in force, and the next one goes behind it.
void pm_journal_count(struct pm_journal *j);
// When the files have, durably, what all commits in the journal say: the next one goes to its
// start. False, with errno: it goes behind them still.
bool pm_journal_end_lap(struct pm_journal *j);

// ---- reading ------------------------------------------------------------------------------------

// Commits in a row.
struct pm_journal_found {
    uint64_t epoch, time;     // of the last one
    uint64_t pages;           // the same
    uint32_t held;            // microseconds; the same
    bool forced, amid;        // the same
    uint64_t commits, groups; // of all
    uint64_t bytes;           // where the last one ends
    // Of the last one, if `counted`: see journal_format.h.
    bool counted;
    struct pm_instants instants;
    struct pm_pauses pauses;
    // Before the first one; all is 0 at the start of the journal.
    uint64_t at, lap;
    uint32_t before;
    // Of all.
    uint32_t follows; // see journal_format.h
    uint64_t id;
};

// Names the files that have a lap. Never 0.
uint32_t pm_journal_mark(uint64_t lap);

// The commits that the journal of the heap `uuid` has; found->groups is 0: not one whole one.
// Returns 0 or an errno. PM_JOURNAL_DAMAGED: a commit is not whole, and a later one is; *found are
// those before it. Any other: the journal cannot be read, so *found says nothing. `buffer`:
// PM_JOURNAL_BUFFER bytes.
#define PM_JOURNAL_DAMAGED EBADMSG
int pm_journal_look(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                    struct pm_journal_found *found);
// The same of a heap in use, whose journal changes meanwhile: so nothing is said of damage. If it
// begins anew meanwhile, found->groups is 0, too.
int pm_journal_find(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                    struct pm_journal_found *found);
// After pm_journal_end(): that commit alone. After pm_journal_count(): all in force.
struct pm_journal_found pm_journal_found_last(const struct pm_journal *j);
struct pm_journal_found pm_journal_found_lap(const struct pm_journal *j);

// Files that have changed, and are not synced.
struct pm_journal_touched {
    bool file[PM_JOURNAL_FILES];
};
// Brings commits into the files. `lengths`: sets lengths, too. False, with errno: it may be tried
// again, from the same or an earlier commit on.
bool pm_journal_write_through(const struct pm_journal_io *io, void *buffer,
                              const struct pm_journal_found *found, bool lengths,
                              struct pm_journal_touched *touched);
// The same for the commit that was ended last, without lengths.
bool pm_journal_write_last(struct pm_journal *j, const struct pm_journal_found *last,
                           struct pm_journal_touched *touched);
// Syncs the files, which are not touched any more then: all of them, since each has a report of its
// own of what has failed. False, with errno: a part of what was written may be lost, although later
// syncs succeed; so it is to be written again.
bool pm_journal_sync_touched(const struct pm_journal_io *io, struct pm_journal_touched *touched);
// The word pm_state.applied for this number of commits.
uint64_t pm_journal_applied_word(uint64_t commits);
// Stores how many commits of a lap the files have (pm_state.applied). False, with errno.
bool pm_journal_note_applied(const struct pm_journal_io *io, uint64_t commits,
                             struct pm_journal_touched *touched);
// Stores that the files have a lap (pm_state.lap), and count no commits of the next one. 0: there
// was none. False, with errno.
bool pm_journal_note_held(const struct pm_journal_io *io, uint64_t lap,
                          struct pm_journal_touched *touched);
// Called for each entry of commits; false ends the reading. `from`: the contents of its pages.
typedef bool pm_journal_fn(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                           const char *from, void *arg);
bool pm_journal_each(const struct pm_journal_io *io, void *buffer,
                     const struct pm_journal_found *found, pm_journal_fn *fn, void *arg);
// The same for the commit that was ended last, which is read only if memory does not have it.
bool pm_journal_each_last_of(struct pm_journal *j, const struct pm_journal_found *last,
                             pm_journal_fn *fn, void *arg);
// Empties the journal durably. From then on the files may change without it. `has_commits`: so it
// may have on the medium.
bool pm_journal_retire(const struct pm_journal_io *io, bool has_commits);
// The last step of opening: applies these commits, drops a torn one, and retires the journal.
// False, with errno: nothing is lost, and it may be tried again.
bool pm_journal_recover(const struct pm_journal_io *io, void *buffer,
                        const struct pm_journal_found *found);

// ---- the last contents of each page (journal_last.c) --------------------------------------------

// Called for pages of a file, as the last of the commits has them; false ends the reading. `from`:
// their contents; NULL: zeroes.
typedef bool pm_journal_last_fn(const struct pm_journal_io *io, unsigned file, uint64_t first,
                                uint64_t pages, const char *from, void *arg);
// Each page that the commits name comes once. Contents that a later length has cut off do not;
// zeroes do, as the file may be longer again. False, with errno: the journal cannot be read, or
// `fn` has ended it.
bool pm_journal_each_last(const struct pm_journal_io *io, void *buffer,
                          const struct pm_journal_found *found, pm_journal_last_fn *fn, void *arg);
// Whether the files hold all pages of the journal's commits already. 1, 0, or -1 with errno.
int pm_journal_applied(const struct pm_journal_io *io, void *buffer,
                       const struct pm_journal_found *found);
// Writes what the files have already once more, so that a sync can make it durable that could not
// before. Where a mapping shows a file, it shows the same throughout.
bool pm_journal_write_again(const struct pm_journal_io *io, void *buffer,
                            const struct pm_journal_found *found,
                            struct pm_journal_touched *touched);

// ---- for these functions ------------------------------------------------------------------------

// Goes through groups. `group` is one that was read.
struct pm_journal_reading {
    const struct pm_journal_io *io;
    struct pm_journal_group *group;
    uint64_t at, epoch, lap;
    uint32_t number, before;
    int error; // errno of a read that has failed; 0: the next group is torn, or there is none
};
struct pm_journal_reading pm_journal_read_from(const struct pm_journal_io *io, void *buffer,
                                               const struct pm_journal_found *found);
// Reads the next group. False: it is torn, does not continue, or (r->error) cannot be read.
bool pm_journal_read_next(struct pm_journal_reading *r);
static inline const struct pm_journal_entry *
pm_journal_entries(const struct pm_journal_group *group) {
    const char *entries = (const char *)group + offsetof(struct pm_journal_group, entry);
    return (const struct pm_journal_entry *)entries;
}

#endif
