// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The files that the journal names, and the journal of a heap that is being opened.
#ifndef PM_JOURNAL_FILES_H
#define PM_JOURNAL_FILES_H

#include "media/heap.h"
#include "media/journal/journal.h"

// On the files of the open heap.
extern const struct pm_journal_io pm_journal_files;

// The file of the open heap; NULL: there is none of that name.
struct pm_file *pm_journal_heap_file(unsigned file);
// Allocates space in the heap's files for all pages of the last commit. False, with errno: there is
// none.
bool pm_journal_back_with_space(struct pm_journal *j, const struct pm_journal_found *last);

// The program may close a descriptor of ours, and lower its limit of files, at any moment. So
// before each call it is looked whether a descriptor is ours still. Where many calls come one
// behind the other, one look is enough for all: between (true) and (false).
void pm_journal_files_trust(bool on);

// Makes the open heap's journal, or takes the one that is there.
bool pm_journal_open(void);
// Removes the open heap's journal, which is retired.
void pm_journal_remove(void);

// Reads all of [at, at + len) of a file, as pm_journal_io's `read` does.
bool pm_journal_pread(int fd, void *to, size_t len, uint64_t at);

// The next byte of a file from `at` on that is in no hole; UINT64_MAX: there is none. Where that is
// not known, `at`.
uint64_t pm_journal_next_data(unsigned file, uint64_t at);

// Whether the open heap has a journal that is not empty.
bool pm_journal_waits(void);

// What opening has found in the journal.
enum pm_journal_is {
    PM_JOURNAL_NONE,    // there is none, or it is empty
    PM_JOURNAL_TORN,    // its commit is not in force, and is dropped: the one before it stands
    PM_JOURNAL_APPLIED, // its commit is in the files: it is the one that stands
    PM_JOURNAL_WHOLE,   // only looking, and the files do not have it all: see journal_over.h
};
struct pm_journal_opened {
    enum pm_journal_is is;
    bool cut; // the journal is damaged behind this commit, and the caller wants what is before it
    struct pm_journal_found commit; // with APPLIED and WHOLE
};
extern struct pm_journal_opened pm_journal_opened;

// A damaged journal is not refused: the commits before the damage are in force, and no others. The
// files may have pages of later ones.
extern bool pm_journal_take_good;
// The last change that failed did so because its part of a fixed medium is full, not the medium.
extern bool pm_journal_has_no_room;

// The first step of opening, when the heap is locked: applies what the journal in the heap's
// directory has, and retires it. With `only_look`: changes nothing, and says what there is
// (journal_over.h goes on). The superblock is mapped. PM_DAMAGE: the journal is damaged, or has
// lost commits. PM_OPERATIONAL: it cannot be read, or not be brought in. Nothing is lost by either.
int pm_journal_open_heap(bool only_look, struct pm_error *err);

#endif
