// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a commit knows of each thread that it waits for (commit_gate.h): where the thread is, and
// how much of the patience with it is left. Of the committer alone, one at a time.
#ifndef PM_GATE_SEEN_H
#define PM_GATE_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "calls.h"

struct pm_gate_seen {
    uint64_t used;      // how long it had run at the last look
    uint64_t spent;     // of the patience with it in this commit
    uint64_t waited;    // the same, as long as it sleeps for another thread
    uint64_t missed_at; // milliseconds; when it was first waited for in vain
    uint64_t sections;  // of its record
    uint64_t slept;     // the same, of a section in which it slept in a call and was not waited for
    uint64_t amid;      // the same, and 1, of which there was an instant; 0: of none
    uint32_t commit;    // in which it was waited for last
    uint32_t left;      // the commit in which it was waited for, and left its section
    uint8_t leaves;     // how often in that one
    uint32_t starves;   // the commit in which it was found outside of sections, without a processor
    uint64_t starved;   // how long it had run then
    uint8_t misses;
    bool met;    // it is waited for
    bool asleep; // it waits for another thread: in line for a lock, or in a call, but for no time
};
// By thread id.
extern struct pm_gate_seen *pm_gate_seen;
// All threads at the last hold, but for the one that made it.
extern pid_t *pm_gate_watched;
extern size_t pm_gate_watched_count;
extern uint32_t pm_gate_commit; // the number of this one

bool pm_gate_have_memory(void);
void pm_gate_watch(pid_t id, void *unused);

enum pm_gate_place {
    PM_GATE_OUTSIDE,
    PM_GATE_IN_SECTION,
    PM_GATE_UNKNOWN, // never took a lock that is seen, and is in no call
};
enum pm_gate_place pm_gate_place_of(pid_t id, const struct pm_call_record *of);

// Whether nobody waits for a thread in a section: it sleeps in it, or stays in it.
bool pm_gate_is_let_be(pid_t id, const struct pm_call_record *of, uint64_t sections, bool strict);
// Whether it is in a section, and not let be.
bool pm_gate_is_awaited(pid_t id, bool strict);
// Nobody waits for it from here on, as long as it sleeps in that section: it counts as one that
// waits, between operations. False: it does not sleep in a call.
bool pm_gate_let_sleep(pid_t id);
// The same, or as long as it is in that section. Not the first if `late`: it may sleep for one
// without a processor.
void pm_gate_let_be(pid_t id, bool late);

// Whether a thread that never took a lock sleeps in a call that is not recorded: in libc (getchar),
// or by an instruction of the program's.
bool pm_gate_waits_unrecorded(pid_t id);
// Whether a thread that sleeps in a call does so for a time.
bool pm_gate_naps(pid_t id, const struct pm_call *call);

// What is left, in nanoseconds. `strict` takes no account of what was in vain.
uint64_t pm_gate_patience(pid_t id, bool strict);
// It was waited for in vain.
void pm_gate_missed(pid_t id);

#endif
