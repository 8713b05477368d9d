// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The gate of a commit (threads/commit_gate.h), as a model for spin. Each step of a thread is one
// of its instructions that others can see. A thread that is held makes none. All threads find a
// processor here, and nobody's patience ends: gate_starved.pml has that.
//
//   worker 0   in its section it takes a second lock, and waits for what worker 1 does after a
//              section of its own
//   worker 1   sections; one that it begins may find the gate closed
//   worker 2   waits for a condition: its mutex is free meanwhile, and a commit ends the wait
//   worker 3   in a section of its own it tries to get the lock that worker 0 keeps in its section,
//              again and again, and never sleeps
//
// Checked: at the instant nobody has anything half done; the committer holds in vain at most once
// for each thread that was just past the gate, or that takes back the mutex of a condition; nobody
// waits for ever. tests/integration/test_models.py runs it, and each mutant, which must be found:
//
//   NO_SECOND_LOOK    the instant is taken without a look at the held threads
//   OPEN_BEFORE_HOLD  the gate opens before the threads are held
//   WAITER_INSIDE     a thread that waits for a condition counts as inside
//   NEVER_AJAR        the gate stays closed for a thread that a section waits for
//   AJAR_IF_ALL_SLEEP it does so if another thread in a section does not sleep
//   COUNTS_LATE       a thread counts its lock after its first store
//   COUNTS_OFF_EARLY  a thread takes its lock off the count before its last store
//   HOLDS_AT_GATE     a thread takes its lock before it looks at the gate
#define WORKERS 4
#define COMMITS 2
#define ROUNDS 2

mtype = { open, closed, ajar };
mtype gate = open;
bool held;
byte count[WORKERS]; // locks that the worker holds
bool half[WORKERS];  // something of its is half done
bool asleep[WORKERS];
bool waits[WORKERS];    // at the gate
bool let_pass[WORKERS]; // it may pass the gate, though that has closed again
byte at_gate, made, commits;
bool lock;  // that all share
bool outer; // that worker 0 keeps in its section

#define STEP(what) atomic { !held -> what }

inline pass_gate(id) {
    if
    :: atomic { !held && gate == closed -> at_gate++; waits[id] = true; let_pass[id] = false }
       atomic { (gate != closed || let_pass[id]) && !held -> at_gate--; waits[id] = false }
    :: atomic { !held && gate != closed }
    fi
}

inline begin(id) {
#ifdef HOLDS_AT_GATE
    atomic { !held && !lock -> lock = true }
    pass_gate(id);
#else
    pass_gate(id);
    atomic { !held && !lock -> lock = true }
#endif
#ifdef COUNTS_LATE
    STEP(half[id] = true);
    STEP(count[id]++)
#else
    STEP(count[id]++);
    STEP(half[id] = true)
#endif
}

inline end(id) {
#ifdef COUNTS_OFF_EARLY
    STEP(count[id]--);
    STEP(half[id] = false);
#else
    STEP(half[id] = false);
    STEP(count[id]--);
#endif
    STEP(lock = false)
}

proctype waits_inside() {
    byte i;
    for (i : 1 .. ROUNDS) {
        pass_gate(0);
        atomic { !held && !outer -> outer = true }
        STEP(count[0]++);
        STEP(half[0] = true);
        atomic { !held && !lock -> lock = true }
        STEP(count[0]++);
        STEP(count[0]--);
        STEP(lock = false);
        STEP(asleep[0] = true);
        atomic { made > 0 && !held -> made--; asleep[0] = false }
        STEP(half[0] = false);
        STEP(count[0]--);
        STEP(outer = false)
    }
}

proctype tries() {
    pass_gate(3);
    STEP(count[3]++);
    STEP(half[3] = true);
    atomic { !held && !outer -> outer = true }
    STEP(outer = false);
    STEP(half[3] = false);
    STEP(count[3]--)
}

proctype makes() {
    byte i;
    for (i : 1 .. ROUNDS) {
        begin(1);
        end(1);
        STEP(made++)
    }
}

proctype waits_for_commit() {
    begin(2);
    STEP(half[2] = false);
#ifndef WAITER_INSIDE
    STEP(count[2]--);
#endif
    atomic { !held -> lock = false; asleep[2] = true }
    atomic { commits > 0 && !held && !lock -> lock = true; asleep[2] = false }
#ifndef WAITER_INSIDE
    STEP(count[2]++);
#endif
    STEP(half[2] = true);
    end(2)
}

#define INSIDE(id) (count[id] > 0)
#define NOBODY_INSIDE (!INSIDE(0) && !INSIDE(1) && !INSIDE(2) && !INSIDE(3))
#define SLEEPS(id) (INSIDE(id) && asleep[id])
#ifdef AJAR_IF_ALL_SLEEP
#define SLEEPS_OR_OUT(id) (!INSIDE(id) || asleep[id])
#define MAY_WAIT (SLEEPS_OR_OUT(0) && !INSIDE(1) && SLEEPS_OR_OUT(2) && !INSIDE(3))
#else
#define MAY_WAIT (SLEEPS(0) || SLEEPS(2))
#endif

active proctype committer() {
    byte holds;
    run waits_inside();
    run makes();
    run waits_for_commit();
    run tries();
    do
    :: commits < COMMITS ->
        holds = 0;
        gate = closed;
await:
        do
        :: NOBODY_INSIDE -> break
#ifndef NEVER_AJAR
        :: !NOBODY_INSIDE && MAY_WAIT && at_gate > 0 ->
            d_step {
                gate = ajar;
                let_pass[0] = waits[0];
                let_pass[1] = waits[1];
                let_pass[2] = waits[2];
                let_pass[3] = waits[3]
            }
            // Until one has gone on, or for a while: one that came to the gate may pass.
            gate = closed;
            holds = 0
#endif
        od;
#ifdef OPEN_BEFORE_HOLD
        gate = open;
#endif
        held = true;
        holds++;
        assert(holds <= WORKERS + 2);
#ifndef NO_SECOND_LOOK
        if
        :: NOBODY_INSIDE
        :: else -> held = false; goto await
        fi;
#endif
        assert(!half[0] && !half[1] && !half[2] && !half[3]);
        atomic { commits++; held = false }
        gate = open
    :: else -> break
    od
}
