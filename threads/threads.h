// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The other threads of the process: whether there are any, and how to stop them for a moment. The
// kernel replaces one mapping at a time. Sometimes several replacements must look like one instant:
// when a program ends (preload/process/end.c), and when its variables move into the heap
// (gc/roots/capture.c). No other thread may store anything meanwhile.
#ifndef PM_THREADS_H
#define PM_THREADS_H

#include <stdbool.h>
#include <stdint.h>

// Whether the calling thread is the only one. False also if it cannot be found out.
bool pm_threads_none(void);
// Whether there was another one at the last hold, without a call: one that has ended counts, too.
bool pm_threads_some(void);
// Whether another thread is stopped, by a debugger for example. It may stay so for ever.
bool pm_threads_stopped(void);
// Why the last hold was in vain.
enum pm_threads_ears {
    PM_THREADS_HEAR,     // a thread takes long, or nothing is known
    PM_THREADS_NOT_SURE, // one blocks all signals, as a new one does, or one that was just held
    PM_THREADS_UNHEARD,  // one blocks the signal for it
};
enum pm_threads_ears pm_threads_unheard(void);

enum pm_threads {
    PM_THREADS_STILL, // no other thread stores anything
    PM_THREADS_RUN,   // a thread could not be asked, or has not answered within a fifth of a second
    PM_THREADS_DEAF,  // the same, and that thread blocks SIGSEGV: a fault would end the process
};

// Makes every other thread wait in a signal handler. The signal is one that libc uses for itself
// (to run setuid() in all threads), so hardly any program blocks or handles it. A thread that stays
// in the kernel longer (vfork, a slow disk, a debugger) is taken for still if it must run that
// handler before anything else.
//
// Whatever the result, threads that wait do so until pm_threads_resume(). One of them may hold any
// lock, so the caller must not wait for a lock before that.
enum pm_threads pm_threads_stop(void);
// For threads that still run: makes each one wait at its first store to memory that is not
// writable, until pm_threads_resume(). The caller makes all memory read-only that must not change,
// and writable again before pm_threads_resume(). So each thread stops at its first store there, and
// memory is as a kill at that moment might have left it. A system call of such a thread that would
// store there fails with EFAULT.
// The SIGSEGV handler that this needs stays until the first fault with another reason.
bool pm_threads_catch(void);
void pm_threads_resume(void);

// The same for a program that goes on as if nothing had been: memory stands still, and no call of
// the program's fails or ends early. A thread that sleeps in a call is left asleep (calls.h).
// Others wait in the handler, where `rests` allows it: it gets the ucontext_t of the interrupted
// thread, and runs in its signal handler. The program's own handlers wait, too (gates.h). False: a
// thread could not be brought to rest in time, and nobody is held. Holders wait for each other.
bool pm_threads_prepare(void); // takes the memory for it; later a limit may forbid that
typedef bool pm_threads_rests(void *context);
bool pm_threads_hold(uint64_t timeout_ms, pm_threads_rests *rests);
void pm_threads_release(void);
// Whether the calling thread blocks all signals, until it says otherwise: then a hold need not
// block any. One thread at a time says so.
void pm_threads_deaf(bool is);
// Whether the calling thread holds or stops the others, or is about to.
bool pm_threads_holder(void);
// Before this thread executes another program, or works alone: nobody stops or holds threads from
// here on, and no signal of ours is pending for this thread. False, and nothing to do: this process
// is a child that shares memory (vfork), or has a copy of it without pm_threads_forked().
bool pm_threads_keep_off(void);
// The program could not be executed.
void pm_threads_let_on(void);
// In a forked child, before it has a second thread: nobody holds it.
void pm_threads_forked(void);

// Where the kernel leads a handler of the library's when it returns.
void pm_threads_return(void);

#endif
