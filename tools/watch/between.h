// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Brings another process, which is not in commit mode, to an instant between operations: none of
// its threads is in a critical section (threads/sections.h). From outside, by the door of the
// library (threads/sections_door.h): nothing runs there that would not run anyway.
//
//   between_begin      from here on it counts its locks; then the tool does its own work
//   between_approach   the gate is closed: who is in a section leaves it, or sleeps in it
//   between_reached    called while the process is halted (standstill.h); false: not yet
//   between_leave      the gate is open
//   between_end        nothing is counted any more
//
// A thread is between operations if it holds no lock, or sleeps in its section in a call, and
// nobody is awake who may do what it sleeps for: in a section, or outside until it has run for a
// while.
// One that never took a lock is between operations if it is in a call: its locks may be of a kind
// that is not seen. Patience with each thread ends: then any instant is one.
#ifndef PM_TOOLS_BETWEEN_H
#define PM_TOOLS_BETWEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "threads/sections_door.h"

struct between_thread;

struct between {
    pid_t pid;
    bool counts;
    struct pm_sections_door door;
    struct between_thread *thread;
    size_t count, room;
    unsigned holds;
    pid_t amid; // at the instant: a thread that was within an operation; 0: there was none
    bool reached;
    // Of one look. `helpers` are awake, outside of sections, and have hardly run.
    unsigned awaited, asleep, long_asleep, helpers;
    bool at_gate;   // a thread waits there
    unsigned turns; // how often in this approach those were let through, for a sleeper
    uint64_t least; // of the threads that are awake: how long each could run
};

// The process may be halted. False: it has no door that this tool knows; then the others do
// nothing, and any instant is one.
bool between_begin(struct between *b, pid_t pid);
void between_approach(struct between *b);
bool between_reached(struct between *b);
void between_leave(struct between *b);
void between_end(struct between *b);

#endif
