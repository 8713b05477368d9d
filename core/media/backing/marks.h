// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Marks: the program's requests about pages of its own blocks, by mprotect, madvise and mseal,
// which the kernel does not keep for us. A mapping of the heap may be replaced: by a commit, in a
// forked child, at the end of the program. The new one then gets what the old one had. Some marks
// the kernel cannot have at all on a shared file. A large block takes its marks with it when it is
// freed, as one that goes back to the kernel does: so volatile memory has them, too.
//
// The marks are in the process alone: at the next start there are none.
#ifndef PM_MARKS_H
#define PM_MARKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"

// Younger than the oldest headers that this is built with.
#define PM_GUARD_INSTALL 102
#define PM_GUARD_REMOVE 103

enum pm_mark_kind {
    PM_MARK_ACCESS = 1,   // mprotect: other access than reading and writing
    PM_MARK_NO_DUMP = 2,  // MADV_DONTDUMP
    PM_MARK_WIPED = 4,    // MADV_WIPEONFORK: a forked child finds zeroes
    PM_MARK_NO_CHILD = 8, // MADV_DONTFORK: a forked child may not touch it
    PM_MARK_SEALED = 16,  // mseal
    PM_MARK_GUARD = 32,   // MADV_GUARD_INSTALL
    PM_MARK_MAPPED = 64,  // mmap: something else lies there, which is no part of the heap
    PM_MARK_HOLE = 128,   // munmap: nothing lies there
};
#define PM_MARK_AWAY (PM_MARK_MAPPED | PM_MARK_HOLE)

// Above PROT_* a protection key has its place.
#define PM_KEY_SHIFT 8
#define PM_KEY_STAYS (0xff << PM_KEY_SHIFT) // the pages' own, as after mprotect

struct pm_mark {
    uint64_t from, to; // from pm_base, whole pages
    uint16_t kinds;    // of enum pm_mark_kind
    uint16_t access;   // PM_MARK_ACCESS: PROT_*
};

// Changed with the lock, whose rank is PM_RANK_MARKS.
extern struct pm_lock pm_marks_lock;
extern _Atomic uint32_t pm_marks_count;

static inline bool pm_marks_any(void) {
    return atomic_load_explicit(&pm_marks_count, memory_order_relaxed) != 0;
}

// Adds kinds to the pages [from, to), and takes others away. Reading and writing without a key is
// no mark. False: there are too many marks, or no memory; nothing has changed.
bool pm_marks_change(uint64_t from, uint64_t to, unsigned add, unsigned remove, int access);
// The first mark that ends after `at`. False: there is none.
bool pm_marks_next(uint64_t at, struct pm_mark *out);
// The next part of [*at, to) that has no mark of these kinds: it begins at *at, which moves.
// Returns its length; 0: there is none.
uint64_t pm_marks_free_of(unsigned kinds, uint64_t *at, uint64_t to);
// The same two where nobody changes marks: the caller holds all locks, or no other thread runs.
bool pm_marks_next_locked(uint64_t at, struct pm_mark *out);
uint64_t pm_marks_free_of_locked(unsigned kinds, uint64_t *at, uint64_t to);
// Marks what the program has done to pages unseen, by system calls of its own.
void pm_marks_look(void);

// The mapping of these pages is new: it gets the access and the flags that the marks say.
void pm_marks_renew(uint64_t from, uint64_t to);
// Makes the pages readable and writable, until pm_marks_renew().
void pm_marks_lift(uint64_t from, uint64_t to);
// All of the heap can be read, until pm_marks_close(). No other thread of the process runs.
void pm_marks_open(void);
void pm_marks_close(void);
// The block there is freed: its pages are as any others again.
void pm_marks_drop(uint64_t from, uint64_t to);

#endif
