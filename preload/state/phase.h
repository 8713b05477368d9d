// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How far the process is in its life, and all locks of the allocator. One word has the phase.
// pm_phase_move() alone changes it.
//
//   COLD ------ start.c: advance() -------> STARTING
//   STARTING -- start.c: advance() -------> READY or WAITING
//   WAITING --- pm_phase_claim() ---------> STARTING    to open the heap, or for a fork
//   READY ----- before_main.c ------------> RUNNING
//   READY, RUNNING -- end.c: end_once() --> ENDING
//   READY, RUNNING -- pm_process_leave() -> ENDED
//   ENDING ---- end.c: open_gate() -------> ENDED or DOOMED
//   ENDING ---- pm_phase_forked() --------> RUNNING    a child lacks the thread that was ending
//
//   COLD      Nothing has asked for memory yet.
//   WAITING   The settings are read. No heap of this program could ever be found again, and it has
//             asked for little so far, so there is none yet. Or the program will open its heap by
//             pmalloc_open(). The fallback arena serves it.
//   STARTING  One thread opens the heap, or forks while there is none. Its own requests go to the
//             fallback arena; other threads wait.
//   READY     The heap is open. Constructors run. Roots are not captured yet.
//   RUNNING   Roots are captured. main runs, or is called next.
//   ENDING    One thread has come to the end of the program (end.c). Other threads run on; one that
//             also comes to the end waits there.
//   ENDED     The end is over, or pmalloc_close() has done the same. Requests are served as before,
//             and destructors may run.
//   DOOMED    The process could not part from its heap, so it ends without destructors.
//
// media/heap_state.h says whether there is a heap and what it is to this process.
#ifndef PM_PHASE_H
#define PM_PHASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/machine.h"

// In the order of a life, so phases may be compared with < and >=.
enum pm_phase {
    PM_COLD,
    PM_WAITING,
    PM_STARTING,
    PM_READY,
    PM_RUNNING,
    PM_ENDING,
    PM_ENDED,
    PM_DOOMED,
};
#define PM_PHASES 8

// An enum pm_phase. Also a futex: threads wait on it while one thread opens the heap or ends the
// program. pm_phase_move() alone writes it.
extern _Atomic uint32_t pm_phase_word;

// Acquire: a thread that sees READY sees the open heap. One that sees ENDED sees the private
// memory.
static inline enum pm_phase pm_phase(void) {
    return (enum pm_phase)atomic_load_explicit(&pm_phase_word, memory_order_acquire);
}
// Requests are served from the heap, or from what has taken its place.
static inline bool pm_phase_serves(void) { return pm_phase() >= PM_READY; }

extern const struct pm_machine pm_phase_machine;
// Takes an edge of the drawing. If several threads try, one succeeds. False: the phase is not
// `from`. An edge that is not drawn ends the process. Sequentially consistent, for end.c.
bool pm_phase_move(enum pm_phase from, enum pm_phase to);

// All constructors have run, so main runs, in whatever phase.
void pm_phase_main_begins(void);
bool pm_phase_main_runs(void);

// Makes this thread the one that starts: from `seen` to STARTING. No signal handler of its own
// comes in between: it would wait for its own thread.
bool pm_phase_claim(enum pm_phase seen);
// Whether it is this thread that starts.
bool pm_phase_starts_here(void);
// Waits while the process is STARTING.
void pm_phase_await_start(void);
// Ends STARTING, and wakes the threads that wait for that.
void pm_phase_started(enum pm_phase next);
// For a fork. True: the heap is not open, and nobody opens it before pm_phase_release_start(): a
// child would lack that thread. False: the heap is open; nothing is held.
bool pm_phase_hold_start(void);
// In both processes.
void pm_phase_release_start(void);

// In a forked child: no thread is ending it, even if one was ending its parent.
void pm_phase_forked(void);

// Calls `step` for every lock of the allocator, by rising rank.
void pm_process_each_lock(void (*step)(struct pm_lock *));
// Whether somebody has one of them. All other threads are held.
bool pm_process_any_locked(void);
// Held while a commit is made. Taken before all other locks of ours.
extern struct pm_lock pm_commit_lock;
// How many wait for it who do not want a commit: they go before rounds (commit_rounds.h).
extern _Atomic uint32_t pm_commit_lock_awaited;
// Waits for it outside of all locks, with signals as they are: whoever has it holds this thread.
void pm_commit_lock_take(void);
// Held while a root slot is set, so that no slot changes during the end of the program.
extern struct pm_lock pm_process_lock;

#endif
