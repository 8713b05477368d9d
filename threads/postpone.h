// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The program's signal handlers run at once, except in a thread that is inside the library
// (pm_inside, cancel.h): there they wait until it is outside. So whatever a handler may call,
// fork() and the calls that make a commit among them, it finds no lock of ours held by its own
// thread.
//
//   pm_cancel_hold     the thread is inside
//   a signal           is sent again to this thread, which blocks all signals now
//   pm_cancel_release  gives the thread its mask back: the signal arrives
//
// The handler then gets what it would have got: number, siginfo_t, mask, stack and flags. A fault
// of the thread's own (SIGSEGV and its kin) cannot wait: its handler runs inside the library.
//
// A call that a signal of PMAlloc's has interrupted begins again. A signal of the program's that
// came meanwhile would find the thread between the two, and end neither: it ends the call, as it
// would have without PMAlloc (EINTR).
//
// The kernel calls pm_postponing() in the place of each handler. preload/names/handlers.c puts it
// there, and hides it from the program.
#ifndef PM_POSTPONE_H
#define PM_POSTPONE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

typedef void pm_handler(int number, siginfo_t *info, void *context);

// How many signals this thread has heard: PMAlloc's own, and the program's.
struct pm_heard {
    uint32_t ours, others;
};
extern __thread volatile struct pm_heard pm_heard __attribute__((tls_model("initial-exec")));

// What the kernel calls. If the handler need not wait it calls that in its own place, so that
// nothing is added to the stack.
pm_handler pm_postponing;

// Notes a handler of the program's, before the kernel gets pm_postponing(). Returns the one before.
pm_handler *pm_postpone_note(int number, pm_handler *handler);
// The one that is noted.
pm_handler *pm_postpone_noted(int number);

// After the kernel knows of a change to what a signal does, and how many there were.
void pm_postpone_changed(void);
uint32_t pm_postpone_changes(void);

// At the start, and in a forked child: this process is the one whose handlers these are. A child of
// vfork(), or one that skipped the fork handlers, has this memory or a copy of it.
void pm_postpone_here(void);
bool pm_postpone_is_here(void);

// At the end of a handler of PMAlloc's, which has blocked all signals: whether the call that it has
// interrupted begins again.
void pm_postpone_repeats(const void *context);

// A seccomp filter forbids what it takes: handlers run at once from here on.
void pm_postpone_never(void);

#endif
