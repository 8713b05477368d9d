// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The wait for an instant under `idle` (preload/commit/idle.c), as a model for spin. A program
// whose waits are over at once is never seen idle. So the thread that comes to a wait last stands
// before it until PMAlloc's thread has had its instant, once a commit is overdue.
//
//   worker 0    works, and goes into waits, of which the last does not end
//   worker 1    the same, but its work may need what worker 0 does after its next wait; it may be
//               cancelled in a wait, and then it works although it counts as if it waited
//   committer   PMAlloc's thread: counts who waits, makes rounds, holds the workers, looks again
//
// Rounds, and a commit after its instant, take as long as a disk likes. Here they end when nobody
// stands any more.
//
// Checked: at an instant nobody works; nobody stands for ever; rounds are made once before an
// instant is tried; when all wait for good, there is a commit of what they did last.
// tests/integration/test_models.py runs it, and each mutant, which must be found:
//
//   NO_SECOND_LOOK     the instant is taken without a look at the held workers
//   STANDS_ON          a thread stands on after a try for an instant that came to nothing
//   STANDS_ALONE       it stands although another thread works
//   STANDS_IN_ROUNDS   it stands while rounds are made
//   STANDS_FOR_COMMIT  it stands until the commit is durable
//   AHEAD_AGAIN        rounds are made whenever the program seems idle
//   ASLEEP_LATE        the committer looks for new waits before it says that it sleeps
#define WORKERS 2
#define TURNS 2

mtype = { works, stands, waits }; // a worker
mtype = { awake, any, idle };     // the committer
mtype is[WORKERS] = works;
mtype asleep = awake;
byte waiting, entries, committed, rounds;
byte turn[WORKERS];
bool overdue, ahead, held;
bool missed[WORKERS]; // a try since the worker began to stand
bool rung; // the bell
bool news; // since the last look: without any, another look finds the same

#define STEP(what) atomic { !held -> what; news = true }
#define ALL (waiting >= WORKERS)
#define OVER(me) (is[me] == waits && turn[me] == TURNS - 1)
#define STANDS (is[0] == stands || is[1] == stands)

inline ring_if(state) {
    if
    :: state == any || (state == idle && ALL) -> STEP(rung = true)
    :: else
    fi
}

inline enter(me) {
    STEP(waiting++; entries++);
    STEP(state = asleep);
    if
    :: ALL && overdue ->
       STEP(missed[me] = false; is[me] = stands; rung = true);
       atomic {
           !held && (!overdue
#ifndef STANDS_ON
           || missed[me]
#endif
#ifndef STANDS_ALONE
           || !ALL
#endif
           ) -> is[me] = waits; news = true
       }
    :: else -> STEP(is[me] = waits)
    fi;
    ring_if(state);
    state = awake
}

active [WORKERS] proctype worker() {
    mtype state;
    byte me = _pid;
    do
    :: enter(me);
       if
       :: turn[me] == TURNS - 1 -> break
       :: else
       fi;
       if
       :: STEP(is[me] = works; turn[me]++; waiting--)
       :: me == 1 -> STEP(is[me] = works; turn[me]++)
       fi;
       if
       :: true
       :: me == 1 -> turn[0] == turn[1]
       fi
    od
}

inline make_rounds() {
    atomic {
        due = overdue;
#ifndef STANDS_IN_ROUNDS
        overdue = false;
#endif
        rounds++;
        assert(rounds == 1)
    }
    atomic { !STANDS -> overdue = due; due = false; ahead = true }
}

inline try() {
    atomic { before = entries; held = true; rounds = 0; ahead = false }
    if
#ifndef NO_SECOND_LOOK
    :: is[0] == works || is[1] == works ->
       atomic { held = false; missed[0] = true; missed[1] = true }
       if :: overdue = true :: true fi;
       news || rung
    :: else ->
#else
    :: true ->
#endif
       atomic {
           assert(is[0] != works && is[1] != works);
#ifndef STANDS_FOR_COMMIT
           overdue = false;
#endif
           held = false
       }
       atomic { !STANDS -> overdue = false; committed = before }
    fi;
    before = 0
}

active proctype committer() {
    byte before;
    bool due;
    do
    :: atomic { rung = false; news = false }
#ifdef ASLEEP_LATE
       due = entries == committed;
       asleep = any;
#else
       asleep = any;
       due = entries == committed;
#endif
       if
       :: due ->
          due = false;
          if
          :: rung
          :: OVER(0) && OVER(1) && entries == committed -> break
          fi
       :: else ->
          asleep = idle;
          if
          :: !ALL ->
             if :: overdue = true :: true fi;
             news || rung
          :: else ->
             asleep = awake;
             if
#ifdef AHEAD_AGAIN
             :: make_rounds()
#else
             :: !ahead -> make_rounds()
#endif
             :: try()
             fi
          fi
       fi;
       asleep = awake
    od
}
