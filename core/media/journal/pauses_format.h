// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How long the threads of a process have stood still for its commits: for people, as instants are
// (instants_format.h), and beside them in the journal.
#ifndef PM_PAUSES_FORMAT_H
#define PM_PAUSES_FORMAT_H

#include <stdint.h>

#define PM_PAUSE_BOUNDS 19u // see pm_pause_bound()
#define PM_PAUSE_ROUNDS 4u

// Of all commits of the process up to this one.
struct pm_pauses {
    uint64_t of[PM_PAUSE_BOUNDS + 1]; // longer than the bound before, not than this one
    uint64_t held_ns;                 // of all
    uint64_t longest_ns;
    uint64_t round[PM_PAUSE_ROUNDS]; // pages of the first round, the second, the third, the others
    uint64_t instant;                // of the instant, looked at then or later
    uint64_t failed;                 // commits that did not come about, and others later did
};
_Static_assert(sizeof(struct pm_pauses) == 224, "frozen");

#endif
