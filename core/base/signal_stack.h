// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The stacks on which signals arrive. A thread that is held or stopped (threads.h) runs our handler
// at any instruction. The frame that the kernel makes for it takes up to some kilobytes. There may
// be no room for it: a coroutine's stack, or an alternate one, may be as large as the program uses
// of it, and what lies below it is another block. So to the kernel each thread has an alternate
// stack of ours.
//
// The program sees what it would see without that. sigaltstack() tells and keeps what the program
// has asked for. If a handler of the program's is to run on its alternate stack (SA_ONSTACK), the
// frame is moved there. If the program has none, it is moved to where the thread was interrupted.
//
// Rare work of the library that needs more than a little stack runs there, too.
//
//   slot   | frames of signals ...                                   | struct at the top |
#ifndef PM_SIGNAL_STACK_H
#define PM_SIGNAL_STACK_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PM_SIGNAL_STACK ((size_t)64 << 10)

struct pm_signal_stack;
// The calling thread's. NULL: it has none.
extern __thread struct pm_signal_stack *pm_signal_stack_own
    __attribute__((tls_model("initial-exec")));

// Takes one for a thread that is about to be made. `kept` is for that thread, 16 bytes that stay
// until it has its stack. NULL: there is none, and the thread goes without.
struct pm_signal_stack *pm_signal_stack_take(void);
void **pm_signal_stack_kept(struct pm_signal_stack *s);
void pm_signal_stack_return(struct pm_signal_stack *s);

// From here on the calling thread has it ...
void pm_signal_stack_use(struct pm_signal_stack *s);
// ... or one of its own, unless it has one already ...
void pm_signal_stack_give(void);
// ... until here.
void pm_signal_stack_drop(void);

// sigaltstack(), for the program. Negative error.
long pm_signal_stack_set(const stack_t *to, stack_t *was);

// Whether the kernel has changed to this thread's stack for a frame at this address.
static inline bool pm_signal_stack_has(uintptr_t frame, uintptr_t interrupted) {
    uintptr_t from = (uintptr_t)pm_signal_stack_own;
    return from && frame - from < PM_SIGNAL_STACK && interrupted - from >= PM_SIGNAL_STACK;
}
// Runs a handler of the program's with its frame where it belongs. `info` and `context` lie in the
// frame that the kernel has made on our stack.
_Noreturn void pm_signal_stack_move(void (*handler)(int, siginfo_t *, void *), int number,
                                    siginfo_t *info, void *context);

// Runs what needs much stack: on this thread's, as the program's may have too little room. Where
// there is none, on the program's. Handlers wait meanwhile (cancel.h): none runs there.
void pm_signal_stack_run(void (*run)(void *arg), void *arg);

// In a forked child, before it has a second thread.
void pm_signal_stack_forked(void);

#endif
