// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// At the instant of a commit, and in rounds before it: which pages of the files differ from what
// the last commit left, and what of released space is to become zeroes. Both go to the journal.
// What goes there in a round is what the page had then; the instant looks at what was stored to
// since, or copies it, and the copies are looked at afterwards.
//
// A page that commits of this process have written is compared with the sum of what they left
// (page_sums.h), and its file is not read. At the instant the caller holds the extent locks of all
// shards, and no other thread stores anything.
#ifndef PM_CHANGED_PAGES_H
#define PM_CHANGED_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/backing/emptied.h"
#include "media/journal/journal.h"

struct pm_commit_cost {
    uint64_t pages;    // in the journal
    uint64_t before;   // of them those that rounds have found, before the instant
    uint64_t compared; // pages that were looked at, at the instant and after it
    uint64_t copied;   // pages that the process has copied and keeps
    uint64_t dropped;  // pages given back to the kernel
    uint64_t held_us;  // the time at the instant: no other thread stored
};

// Reserves what it needs; in a forked child anew. False: there is no memory.
bool pm_changed_prepare(void);
enum pm_changed_when {
    PM_CHANGED_ROUND, // other threads run
    PM_CHANGED_INSTANT,
    PM_CHANGED_INSTANT_DROP, // a page that is as its file has it may be given back to the kernel
    PM_CHANGED_AFTER,        // other threads run again, and pages were copied
};
// Counts in `cost`.
void pm_changed_begin(struct pm_journal *journal, enum pm_changed_when when,
                      struct pm_commit_cost *cost);
// Of the file, [at, at + len) is mapped from `offset` on. Under the last commit it has `length`
// bytes, and no bytes beyond.
void pm_changed_look(unsigned file, char *at, size_t len, uint64_t offset, uint64_t length);
// The same of pieces of a file, in the order of their addresses, that lie near each other: one
// question serves for all.
struct pm_changed_piece {
    char *at;
    size_t len;
    uint64_t offset;
};
void pm_changed_look_pieces(unsigned file, const struct pm_changed_piece *piece, size_t count,
                            uint64_t length);
// Finds what was stored to since the record began (pm_stored_find()).
bool pm_changed_find_stored(unsigned file, char *at, size_t len, bool anew);
// pm_changed_look() of the pages that were found in the file, whose first byte is at `start`; of
// all that was found in all files, pages [from, to).
void pm_changed_look_stored(unsigned file, char *start, uint64_t length, uint64_t from,
                            uint64_t to);
// The same up to page `to`, of copies: those of all files lie one behind the other.
void pm_changed_look_copied(unsigned file, char *start, uint64_t length, const char **copies,
                            uint64_t to);
// Gives back pages from `from` on that were not stored to since the last look, and are not in this
// commit: the file has them. After `until`, by pm_os_now_ns(), no further part is begun. Returns
// where it has ended.
uint64_t pm_changed_drop_rest(unsigned file, char *start, uint64_t from, uint64_t end,
                              uint64_t until);
// A range that was released since the last commit: what of it is not in use again becomes zeroes.
void pm_changed_zeroes(const struct pm_emptied *e);
// False: in a round, where pages could not be read. Nothing is known of these.
bool pm_changed_end(void);

#endif
