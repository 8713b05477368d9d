// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap whose program, or a library of it, is another build than the one that last used it, or
// lies elsewhere: each word that leads into one of them is made to lead to the same thing.
//
//   find the words      nothing changes: all live blocks and restored roots are looked at
//   judge each          verdict.h; one that cannot be proved refuses all
//   copies              copies.h, where string literals are gone; then all of it from the start
//   next record         objects.a or .b, durable, not in force
//   one commit          the changed pages, and page 1 with the new record in force, in the journal
//
// The commit is in force when the journal is durable. Then the heap is to be opened once more:
// opening brings the journal into the files. To do it twice would be wrong, because old and new
// places overlap; so words and record change together, in that one commit. A cut before it leaves
// the heap as it was, a cut after it a heap that is done.
//
// It runs in a child of its own, because it reads all that a recovery reads.
#ifndef PM_REWRITE_H
#define PM_REWRITE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "copies.h"

// What was found, for a line.
struct pm_rewritten {
    uint64_t changed; // words
    uint64_t waits;   // words that lead to objects which are not loaded yet
    uint64_t stale;   // of those that were changed: to 0, as PMALLOC_REBASE_TRUST=stale wants it
    uint64_t unsure;
    bool other_build; // the program or a library is another build, not only elsewhere
    struct pm_copies copies;
};
// Whether strings are to be copied, and have no block yet.
static inline bool pm_rewrite_lacks_copies(const struct pm_rewritten *done) {
    return done->copies.count && !done->copies.at;
}

// For a heap that is open, and mapped; pm_record_has_moved() was true. PM_OPERATIONAL: refused, and
// nothing was changed; lines have said which words are at fault. Without words to change, with
// `dry`, and where copies are lacking, nothing changes. `done` is empty, or has the copies.
int pm_rewrite(bool dry, struct pm_rewritten *done, struct pm_error *err);

#endif
