// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The journal: how all changes of a commit reach the heap's files, or none does. It is a redo
// journal in one file, and a commit takes one sync before it counts:
//
//   begin, add ..., end --> sync of the journal --> apply --> sync of the files
//                           the commit counts       and the journal may be written anew
//
//   a cut before it counts   some group is torn: the commit is dropped. The files are those of the
//                            commit before, because that was applied and synced before begin.
//   a cut after that         the commit is applied again. What is applied already stays as it is.
//
// Nothing needs to be written to end a commit: the journal of a commit that is applied and synced
// says what the files hold anyhow. Before files change in another way, the journal is retired.
#ifndef PM_JOURNAL_H
#define PM_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "journal_format.h"

// A file as the journal names it. PM_JOURNAL_SELF is the journal.
#define PM_JOURNAL_SELF 0u
#define PM_JOURNAL_MEMBERS 7u
static inline unsigned pm_journal_file(enum pm_journal_member member, unsigned shard) {
    return shard * PM_JOURNAL_MEMBERS + member;
}

// What it does with files; false and errno where that fails. The simulator in tests/crash has one
// of its own.
struct pm_journal_io {
    bool (*write)(unsigned file, const void *from, size_t len, uint64_t at);
    // False also if the file ends before that.
    bool (*read)(unsigned file, void *to, size_t len, uint64_t at);
    bool (*zero)(unsigned file, uint64_t at, uint64_t len); // within the file's length, or not
    bool (*set_length)(unsigned file, uint64_t bytes);
    bool (*sync)(unsigned file); // contents and length
};

// ---- writing ------------------------------------------------------------------------------------

// A commit that is being written. `group` with its pages lies in memory of the caller's.
struct pm_journal {
    const struct pm_journal_io *io;
    struct pm_journal_group *group; // room for 1 + PM_JOURNAL_PAGES pages
    uint32_t most;                  // pages in a group: at most PM_JOURNAL_PAGES
    uint64_t at;                    // where the group goes
    uint64_t pages;                 // of all groups
    uint32_t held;                  // for the last group: see journal_format.h
    bool forced;                    // the same
    bool failed;                    // a write has failed; errno was `error`
    int error;
};

// The bytes that `group` needs.
#define PM_JOURNAL_BUFFER ((size_t)(1 + PM_JOURNAL_PAGES) * PM_PAGE_SIZE)

void pm_journal_begin(struct pm_journal *j, const uint8_t uuid[16], uint64_t epoch, uint64_t time);
// Adds pages of a file. Their contents are taken over at once.
void pm_journal_add_pages(struct pm_journal *j, unsigned file, uint64_t first, const void *from,
                          uint64_t pages);
// Adds pages that hold zeroes only.
void pm_journal_add_zeroes(struct pm_journal *j, unsigned file, uint64_t first, uint64_t pages);
// Adds the length that the file has under this commit.
void pm_journal_add_length(struct pm_journal *j, unsigned file, uint64_t bytes);
// Writes the last group. False, with errno: this or an earlier write has failed, so this is no
// commit. On true the caller syncs the journal.
bool pm_journal_end(struct pm_journal *j);

// ---- reading ------------------------------------------------------------------------------------

struct pm_journal_found {
    uint64_t epoch, time;
    uint64_t groups, pages, bytes; // bytes: of the journal
    uint32_t held;                 // microseconds
    bool forced;
};

// Whether the journal holds a whole commit of the heap `uuid`. `buffer`: PM_JOURNAL_BUFFER bytes.
bool pm_journal_look(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                     struct pm_journal_found *found);
// Brings a whole commit into the files, and syncs them. `lengths`: sets lengths, too. False, with
// errno: it may be tried again.
bool pm_journal_apply(const struct pm_journal_io *io, void *buffer,
                      const struct pm_journal_found *found, bool lengths);
// What is done with each entry of a commit; false ends it. `from`: the contents of its pages.
typedef bool pm_journal_fn(const struct pm_journal_io *io, const struct pm_journal_entry *e,
                           const char *from, void *arg);
bool pm_journal_each(const struct pm_journal_io *io, void *buffer,
                     const struct pm_journal_found *found, pm_journal_fn *fn, void *arg);
// Empties the journal, durably. From then on the files may change without it.
bool pm_journal_retire(const struct pm_journal_io *io);
// What opening does first: applies a whole commit, drops a torn one, and retires the journal.
// found->groups is 0 if there was no whole one. False, with errno: nothing is lost, and it may be
// tried again.
bool pm_journal_recover(const struct pm_journal_io *io, void *buffer, const uint8_t uuid[16],
                        struct pm_journal_found *found);
// Whether the files hold the commit already.
bool pm_journal_applied(const struct pm_journal_io *io, void *buffer,
                        const struct pm_journal_found *found);

#endif
