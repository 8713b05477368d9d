// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// At which instants a process has taken its commits: for people, and nothing else is decided by it.
// In the journal, behind the entries of each commit's last group; and in page 1 of the superblock.
#ifndef PM_INSTANTS_FORMAT_H
#define PM_INSTANTS_FORMAT_H

#include <stdint.h>

// Of all commits of the process up to this one. commit_gate.h has the three kinds.
struct pm_instants {
    uint64_t between; // how many of each kind
    uint64_t waited;
    uint64_t any;
    uint64_t time;   // nanoseconds since 1970: the last of `any`. Of that one:
    uint64_t lock;   // the address of a lock that was held; 0: none is known
    uint32_t thread; // that held it, or had never taken a lock; 0: none is known
    uint32_t unseen; // threads that had never taken a lock that is seen, when all were held last
    char name[16];   // of `thread`; NUL ends a shorter one
};
_Static_assert(sizeof(struct pm_instants) == 64, "frozen");

// For a heap whose journal is gone: after pm_objects_state, in pm_state.reserved. Written when a
// process has made its last commit, and when a recovery has brought some into the files.
struct pm_instants_state {
    struct pm_instants instants;
    uint64_t time; // of the last commit that they count; 0: nothing is on record
    uint8_t reserved[52];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_instants_state) == 128, "two lines");

#endif
