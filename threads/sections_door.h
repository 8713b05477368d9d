// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How another process, a tool, brings the threads of this one to an instant between operations
// (sections.h), where no commit mode counts their locks:
//
//   stores PM_GATE_ASKED into the gate    the next thread that takes a lock begins to count
//   goes on with its own work             who was in a section before that leaves it
//   PM_GATE_CLOSED, reads the records     until nobody is in a section; one that sleeps in it may
//                                         wait for one at the gate, which is let through
//   halts the process, reads them again
//   PM_GATE_OPEN, at last PM_GATE_NONE    nothing is counted any more
//
// A thread at such a gate looks at it by itself, since the tool wakes nobody. If the tool is killed
// the gate opens after a second.
#ifndef PM_SECTIONS_DOOR_H
#define PM_SECTIONS_DOOR_H

#include <stdatomic.h>
#include <stdint.h>

#include "calls.h"

struct pm_sections_door {
    _Atomic uint32_t *gate;                        // an enum pm_gate_word
    const _Atomic uint32_t *at_gate;               // how many threads wait there
    struct pm_call_record *const _Atomic *records; // by thread id; NULL: nobody has counted yet
    int64_t owner;                 // where in a plain mutex its owner's id lies; -1: nowhere
    _Atomic uint32_t *let_through; // changes: who is at the gate passes it, also if it stays closed
};

// The same at each call.
const struct pm_sections_door *pm_sections_open_door(void);

#endif
