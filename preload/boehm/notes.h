// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Tables by address, in memory that the collector does not look at: a word there keeps no block
// alive. A hash table with chains; notes are named by number, because the table may grow:
//
//   bucket[hash] -> note -> note -> 0
//
// Lock: pm_gc_lock.
#ifndef PM_BOEHM_NOTES_H
#define PM_BOEHM_NOTES_H

#include <stdbool.h>
#include <stdint.h>

struct note {
    uintptr_t key;
    uintptr_t block; // what the note is about, if the key is not it
    void (*call)(void *, void *);
    void *data;
    uint32_t next; // of the bucket, or of the free ones
    uint32_t how;
};

struct notes {
    struct note *note; // [0] is not used
    uint32_t *bucket;  // those of 2^log2 begin at [2^log2]
    uint32_t log2, top, spare, count;
    uint32_t room; // of both, in elements
};

// The note with this key; 0: there is none.
uint32_t notes_find(const struct notes *t, uintptr_t key);
// Adds one; 0: no memory. There is none with this key.
uint32_t notes_add(struct notes *t, uintptr_t key);
// Removes one. NOTES_EACH allows that for the note at hand.
void notes_remove(struct notes *t, uint32_t i);
// Gives one another key, which no other note has.
void notes_rekey(struct notes *t, uint32_t i, uintptr_t key);

// All notes: key 0 means that there is none in this place.
#define NOTES_EACH(i, t)                                                                           \
    for (uint32_t i = 1; i < (t)->top; i++)                                                        \
        if ((t)->note[i].key)

#endif
