// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which program the heap belongs to. Pointers from the heap into code, constants and globals are
// valid only while the program is the same build at the same addresses. If it is another build or
// lies elsewhere, marking counts such pointers, and a message at the start says how many there are.
#ifndef PM_PROGRAM_H
#define PM_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "media/format.h"

// Two ranges of addresses where the recorded program lay: its own segments and its libraries'.
// Marking counts the words in live objects that point into each. Or it calls `found` for each word
// that is not 0 of live objects and of roots; for some it does so twice.
struct pm_stray {
    void (*found)(const uint64_t *word); // NULL: it counts
    uint64_t start[2], len[2];
    uint64_t words[2];
    bool counted; // false: nothing was marked, so `words` says nothing
};

// Adds the words before `end`. Several markers may count at once.
void pm_stray_count(struct pm_stray *s, const uint64_t *word, const uint64_t *end);

// Compares this process with the program on record. Returns what marking has to count, or NULL if
// this is the same build at the same addresses. The struct stays valid, for pm_program_record().
struct pm_stray *pm_program_stray(void);
// Whether this run's addresses come again, for the record; and what to do where words of the heap
// lead to other ones. To be called before pm_program_record().
void pm_program_note_addresses(enum pm_addresses how, const char *remedy);
// Whether nobody could know before where the program and its libraries would lie.
bool pm_program_is_at_random(void);
// Whether this process runs the build on record.
bool pm_program_is_known(void);
// The path of the program on record, or "".
const char *pm_program_on_record(void);
// This program, as it is on record from now on.
bool pm_program_now(struct pm_program *out);
// Prints in one line which pointers are no longer valid, and records this program on media, unless
// the heap is borrowed.
void pm_program_record(void);

#endif
