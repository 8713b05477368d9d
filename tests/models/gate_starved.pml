// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The gate of a commit (threads/commit_gate.h) where threads find no processor, as a model for
// spin: patience, and its end. gate.pml has the steps of the gate itself.
//
//   worker 0   in its section it sleeps until worker 1 has done something, and then for something
//              that is no thread's; it keeps the lock `outer` meanwhile
//   worker 1   a section, and then what worker 0 sleeps for
//   worker 2   in a section of its own it tries to get `outer`, again and again, and never sleeps
//   worker 3   computes, outside of sections, and at last sleeps
//   machine    takes a worker's processor, for as long as it likes
//
// The committer does not see who has a processor. It sees who sleeps, who has run for so long that
// patience is over, and that a second has passed, which may be when somebody had no processor.
//
// Checked: at an instant that counts as between operations nobody is in a section, but for one that
// sleeps for something that is no thread's. Another instant comes only if one sleeps so, or after
// LATE tries that took a second; and then it comes. After such a try the gate is open.
// tests/integration/test_models.py runs it, and each mutant, which must be found:
//
//   STARVED_OUTSIDE  a thread in a section that does not run counts as outside
//   ANY_WHEN_LATE    a second is enough for any instant
//   NEVER_ANY        each try that takes a second is in vain
//   STAYS_CLOSED     the gate stays closed after it
//   LATE_AT_GATE     a thread at the gate is none that keeps a sleeper
//   LATE_LETS_BE     a sleeper that was given up after a second counts as between operations
//   OVER_AT_GATE     patience with a sleeper ends though one has come to the gate
//   LETS_BE_AT_ONCE  a sleeper is let be though a thread that is awake has not run yet
//   ANY_HAS_RUN      the same, if another thread has run
//   NO_RENEWAL       patience with one that tries a lock does not begin anew when others leave
//   WOKEN_LET_BE     a sleeper that is let be stays so after it has woken
//   SLEPT_ONCE       sleepers are not looked at again after those who may help them
//   GATE_ONCE        nor is the gate
#define WORKERS 4
#define COMMITS 2
#define LATE 2

mtype = { open, closed, ajar };
mtype gate = open;
bool held;
bool starves[WORKERS]; // has no processor
bool inside[WORKERS];  // in a section, with something half done
bool asleep[WORKERS];
bool in_call[WORKERS]; // it has not gone on since it slept
bool waits[WORKERS];   // at the gate
bool let_pass[WORKERS];
bool done;    // what worker 0 sleeps for first
bool nobodys; // it sleeps for something that is no thread's
bool outer;

// What the committer knows.
bool ran[WORKERS];      // for so long that patience is over
bool let_be[WORKERS];   // it sleeps in its section, and is not waited for
bool given_up[WORKERS]; // it is not waited for, and is not between operations
bool second;            // one may have passed
byte late;              // tries in a row that took a second

bool rightly[WORKERS]; // it was given up for a good reason; the committer does not know

#define STEP_IF(id, when, what) atomic { !held && !starves[id] && (when) -> what }
#define STEP(id, what) STEP_IF(id, true, what)

inline begin(id) {
    if
    :: STEP_IF(id, gate == closed, waits[id] = true; let_pass[id] = false);
       STEP_IF(id, gate != closed || let_pass[id], waits[id] = false; inside[id] = true)
    :: STEP_IF(id, gate != closed, inside[id] = true)
    fi
}

#ifdef NO_RENEWAL
#define RENEW skip
#else
#define RENEW ran[0] = false; ran[1] = false; ran[2] = false
#endif
inline end(id) {
    inside[id] = false;
    let_be[id] = false;
    given_up[id] = false;
    rightly[id] = false;
    RENEW
}

active proctype sleeps() {
    begin(0);
    STEP(0, outer = true; asleep[0] = !done; in_call[0] = true);
    STEP_IF(0, done, nobodys = true; asleep[0] = true);
    asleep[0] = false; // whether it has a processor then, or not
    STEP(0, nobodys = false; in_call[0] = false);
    STEP(0, outer = false; end(0); asleep[0] = true)
}

active proctype helps() {
    begin(1);
    STEP(1, end(1));
    STEP(1, done = true; asleep[0] = asleep[0] && nobodys; asleep[1] = true)
}

active proctype tries() {
    begin(2);
    do
    :: STEP_IF(2, outer && !ran[2], ran[2] = true)
    :: STEP_IF(2, !outer, end(2); asleep[2] = true); break
    od
}

active proctype computes() {
    do
    :: STEP_IF(3, !ran[3], ran[3] = true)
    :: STEP(3, asleep[3] = true); break
    od
}

#define TAKE(id) atomic { !starves[id] -> starves[id] = true; second = true }
#define GIVE(id) atomic { starves[id] -> starves[id] = false }

active proctype machine() {
    do
    :: TAKE(0) :: TAKE(1) :: TAKE(2) :: TAKE(3)
    :: GIVE(0) :: GIVE(1) :: GIVE(2) :: GIVE(3)
    od
}

// ---- what the committer sees --------------------------------------------------------------------

#define AT_GATE (waits[0] || waits[1] || waits[2])
#define SLEEPS(id) (asleep[id] || (waits[id] && !let_pass[id] && gate == closed))
#define IS_AWAKE(id) (!SLEEPS(id))

#ifdef WOKEN_LET_BE
#define LET_BE(id) let_be[id]
#else
#define LET_BE(id) (let_be[id] && in_call[id])
#endif
#ifdef STARVED_OUTSIDE
#define AWAITED(id) (inside[id] && !starves[id] && !LET_BE(id) && !given_up[id])
#else
#define AWAITED(id) (inside[id] && !LET_BE(id) && !given_up[id])
#endif
#define NOBODY_AWAITED (!AWAITED(0) && !AWAITED(1) && !AWAITED(2))
#define SLEEPER (AWAITED(0) && asleep[0])
#define RESTS(id) (!AWAITED(id) || asleep[id])
#define ALL_SLEEP (RESTS(0) && RESTS(1) && RESTS(2))

// Nobody knows whom a sleeper waits for: patience with it is over when others have run.
#define OTHERS_RAN (ran[1] || ran[2] || ran[3])
#define SPENT(id) (!AWAITED(id) || ran[id] || (asleep[id] && OTHERS_RAN))
#define ALL_SPENT (SPENT(0) && SPENT(1) && SPENT(2))

// It may be the one that a sleeper waits for.
#define HAS_YET_TO_RUN(id) (!AWAITED(id) && IS_AWAKE(id) && !ran[id])
#define ONE_HAS_YET_TO_RUN                                                                         \
    (HAS_YET_TO_RUN(0) || HAS_YET_TO_RUN(1) || HAS_YET_TO_RUN(2) || HAS_YET_TO_RUN(3))
#ifdef ANY_HAS_RUN
#define COUNTS !OTHERS_RAN
#else
#ifdef LETS_BE_AT_ONCE
#define COUNTS false
#else
#define COUNTS true
#endif
#endif
#define ONE_STARVES (ONE_HAS_YET_TO_RUN && COUNTS)

// One that has helped may have woken a sleeper, or come to the gate, before it was looked at.
#ifdef SLEPT_ONCE
#define STILL_SLEEP true
#else
#define STILL_SLEEP ALL_SLEEP
#endif
#ifdef GATE_ONCE
#define STILL_NO_ONE_AT_GATE true
#else
#define STILL_NO_ONE_AT_GATE !AT_GATE
#endif

#ifdef OVER_AT_GATE
#define GIVES_TURN false
#else
#define GIVES_TURN (SLEEPER && AT_GATE) // in the program: a few times
#endif

#ifdef LATE_AT_GATE
#define KEEPS_SLEEPER (IS_AWAKE(1) || IS_AWAKE(2) || IS_AWAKE(3))
#else
#define KEEPS_SLEEPER (IS_AWAKE(1) || IS_AWAKE(2) || IS_AWAKE(3) || AT_GATE)
#endif
#define CANNOT_RUN(id) (AWAITED(id) && !ran[id] && IS_AWAKE(id))
#define ONE_CANNOT_RUN                                                                             \
    (CANNOT_RUN(0) || CANNOT_RUN(1) || CANNOT_RUN(2) || (SLEEPER && KEEPS_SLEEPER))

#ifdef ANY_WHEN_LATE
#define MAY_TRY_AGAIN false
#else
#ifdef NEVER_ANY
#define MAY_TRY_AGAIN true
#else
#define MAY_TRY_AGAIN (late < LATE)
#endif
#endif
#define TRIES_AGAIN (MAY_TRY_AGAIN && ONE_CANNOT_RUN)

// ---- the committer ------------------------------------------------------------------------------

#ifdef LATE_LETS_BE
#define SLEEPS_WELL(id, is_late) asleep[id]
#else
#define SLEEPS_WELL(id, is_late) (asleep[id] && !(is_late))
#endif

inline give_up(id, is_late) {
    if
    :: AWAITED(id) && SLEEPS_WELL(id, is_late) -> let_be[id] = true
    :: AWAITED(id) && !SLEEPS_WELL(id, is_late) ->
        given_up[id] = true;
        rightly[id] = nobodys || late == LATE || rightly[0]
    :: else
    fi
}

inline give_all_up(is_late) {
    give_up(0, is_late);
    give_up(1, is_late);
    give_up(2, is_late)
}

#define IN_THE_WAY(id) (inside[id] && !LET_BE(id))
#define IS_WELL(id) (!IN_THE_WAY(id) || rightly[id])

active proctype committer() {
    byte commits, tried;
    do
    :: commits == COMMITS -> break
    :: else ->
        tried++;
        assert(tried <= LATE + 1);
        d_step {
            gate = closed;
            ran[0] = false; ran[1] = false; ran[2] = false; ran[3] = false;
            second = starves[0] || starves[1] || starves[2] || starves[3]
        }
await:
        do
        :: atomic { NOBODY_AWAITED -> break }
        :: atomic { SLEEPER && AT_GATE ->
               gate = ajar;
               let_pass[0] = waits[0]; let_pass[1] = waits[1]; let_pass[2] = waits[2] }
           gate = closed
        :: atomic { !NOBODY_AWAITED && ALL_SLEEP && !AT_GATE -> skip } // the looks take their time
           if
           :: ONE_STARVES
           :: !ONE_STARVES ->
               if
               :: atomic { STILL_SLEEP && STILL_NO_ONE_AT_GATE -> give_all_up(false); break }
               :: !(STILL_SLEEP && STILL_NO_ONE_AT_GATE)
               fi
           fi
        :: atomic { !NOBODY_AWAITED && ALL_SPENT && !ONE_STARVES && !GIVES_TURN ->
               give_all_up(false); break }
        :: atomic { !NOBODY_AWAITED && second ->
               if
               :: TRIES_AGAIN -> goto in_vain
               :: else -> give_all_up(true); break
               fi }
        od;
        held = true;
        if
        :: atomic { AWAITED(0) || AWAITED(1) || AWAITED(2) -> held = false; goto await }
        :: else
        fi;
        assert(IS_WELL(0) && IS_WELL(1) && IS_WELL(2));
        assert(IN_THE_WAY(0) || IN_THE_WAY(1) || IN_THE_WAY(2) || // any instant, and it says so
               ((!inside[0] || nobodys) && !inside[1] && !inside[2]));
        atomic { commits++; late = 0; tried = 0; held = false; gate = open }
        goto next;
in_vain:
#ifdef STAYS_CLOSED
        late++;
#else
        atomic { late++; gate = open }
#endif
next:   assert(gate == open)
    od
}
