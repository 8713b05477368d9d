// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Holds all threads (hold.h) at an instant between operations: no other thread is in a critical
// section (sections.h), so what a lock protects is whole.
//
//   close the gate        who is about to begin a section waits
//   the others            leave their sections; the last one rings
//   hold all, look again  a thread that was just past the gate may be in a section: once more
//   the instant
//   release, open         all go on
//
// A thread is between operations when it holds no lock, when it is at something that leaves the
// process (under `output`), or when it waits (PM_CALL_WAITS of calls.h). The three rungs:
//
//   PM_RUNG_BETWEEN  all other threads are between operations
//   PM_RUNG_WAITED   the same, and threads that never took a lock were waited for: their locks may
//                    be of a kind that is not seen, so each of them was in a call
//   PM_RUNG_ANY      patience was over
//
// Patience counts time in which the thread that is waited for has run or slept, not time in which
// it, or one that has its next lock, found no processor. A thread that was waited for in vain gets
// less of it the next time, and none at all while it stays in the same section. One that finds no
// processor for a second cannot be held: there is no instant (PM_GATE_NOT_STILL), and the gate
// opens. After a few commits of this kind the next one takes any, and those after it do, too, as
// long as the section lasts. Who can try again later takes any only for a section of which there
// has been such an instant before (PM_GATE_TRIES).
//
// A section may wait for a thread at the gate: for a condition, a join, a pipe. So when all that
// are inside sleep, the gate is left ajar until one of them has gone on; then it closes again.
// Patience with a sleeper is not over before one at the gate has had that turn.
#ifndef PM_COMMIT_GATE_H
#define PM_COMMIT_GATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum pm_rung { PM_RUNG_BETWEEN, PM_RUNG_WAITED, PM_RUNG_ANY, PM_RUNGS };

struct pm_gate_passed {
    enum pm_rung rung;
    uint64_t held_since; // of pm_os_now_ns()
    // Of PM_RUNG_ANY: a thread that was not between operations, and the lock that it took last; 0:
    // it runs, and never took one.
    pid_t thread;
    uintptr_t lock;
    // Threads that have never taken a lock that is seen: maybe they use others.
    uint32_t unseen;
    bool counted; // they were
};

enum pm_gate_result {
    PM_GATE_HELD,
    PM_GATE_NOT_STILL, // a thread does not stop, or finds no processor; nobody is held
    PM_GATE_INSIDE,    // a thread does not leave its section, and any instant will not do
};

// Whether PM_RUNG_ANY will do.
enum pm_gate_wish {
    PM_GATE_PATIENCE, // when patience is over
    PM_GATE_TRIES,    // the same, but not as the first one of that thread's section
    PM_GATE_STRICT,   // never, and patience is long
};

// One at a time (the commit lock).
enum pm_gate_result pm_gate_hold(uint64_t timeout_ms, enum pm_gate_wish wish,
                                 struct pm_gate_passed *passed);
void pm_gate_release(void);

// For the end of the program, which stops the others in its own way: closes the gate and waits
// until nobody is inside who is worth waiting for. Then, while all stand still: whether all are
// between operations. Then the gate opens. `strict` says whether there is no other instant.
void pm_gate_shut(bool strict);
bool pm_gate_is_between(void);
void pm_gate_open(void);

#endif
