// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "postpone.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "action.h"
#include "base/bare_thread.h"
#include "base/cancel.h"
#include "base/event_hook.h"
#include "base/here.h"
#include "base/signal_stack.h"
#include "calls.h"
#include "thread_list.h"

#define SIGNALS 64
#define BIT(s) (1ull << ((s)-1))
// What the kernel sends for a fault of the thread itself.
#define FAULTS (BIT(SIGSEGV) | BIT(SIGBUS) | BIT(SIGILL) | BIT(SIGFPE) | BIT(SIGTRAP) | BIT(SIGSYS))
// libc's own signals: another thread may wait for their handlers.
#define LIBCS (BIT(32) | BIT(33) | BIT(34))

static _Atomic(pm_handler *) handler_of[SIGNALS + 1];
static _Atomic uint32_t changes;
static _Atomic bool never;
static _Atomic long process;

__thread volatile struct pm_heard pm_heard __attribute__((tls_model("initial-exec")));

// Of this thread: whether a signal waits, and what its mask is once it is outside.
static __thread bool signal_waits __attribute__((tls_model("initial-exec")));
static __thread uint64_t mask_outside __attribute__((tls_model("initial-exec")));

// Of this thread: the instruction of the call that begins again; 0: none.
static __thread uintptr_t repeated __attribute__((tls_model("initial-exec")));

// The instruction leaves the address of the next one in RCX. To begin the call again, the kernel
// steps back over its two bytes.
#define CALL_BYTES 2

static uintptr_t call_to_repeat(const ucontext_t *context) {
    const greg_t *reg = context->uc_mcontext.gregs;
    return reg[REG_RCX] == reg[REG_RIP] + CALL_BYTES ? (uintptr_t)reg[REG_RIP] : 0;
}

// A hold may come at the first instruction of a handler that is about to end such a call.
void pm_postpone_repeats(const void *context) {
    uintptr_t call = call_to_repeat(context);
    if (call)
        repeated = call;
    pm_heard.ours++;
}

// A handler with SA_RESTART lets the call go on.
static void end_call(int number, ucontext_t *context) {
    struct pm_action action;
    if (call_to_repeat(context) != repeated || pm_action_set(number, NULL, &action) != 0 ||
        (action.flags & SA_RESTART))
        return;
    context->uc_mcontext.gregs[REG_RAX] = -EINTR;
    context->uc_mcontext.gregs[REG_RIP] += CALL_BYTES;
    repeated = 0;
}

pm_handler *pm_postpone_note(int number, pm_handler *handler) {
    return atomic_exchange(&handler_of[number], handler);
}

pm_handler *pm_postpone_noted(int number) { return atomic_load(&handler_of[number]); }

void pm_postpone_changed(void) { atomic_fetch_add(&changes, 1); }

uint32_t pm_postpone_changes(void) { return atomic_load(&changes); }

void pm_postpone_here(void) {
    process = pm_bare_call(SYS_getpid, 0, 0, 0, 0);
    pm_here_mark();
}

bool pm_postpone_is_here(void) {
    return process && process == pm_bare_call(SYS_getpid, 0, 0, 0, 0);
}

void pm_postpone_never(void) { atomic_store(&never, true); }

// Where the handler takes no siginfo_t, the kernel has written none: nothing tells whether a fault
// is one. After a delivery with SA_RESETHAND there is no handler any more.
static bool send_again(int number, siginfo_t *info) {
    long self = pm_bare_call(SYS_getpid, 0, 0, 0, 0), thread = pm_bare_call(SYS_gettid, 0, 0, 0, 0);
    struct pm_action action;
    if (pm_action_set(number, NULL, &action) != 0)
        return false;
    bool informed = (action.flags & SA_SIGINFO) != 0;
    if ((FAULTS & BIT(number)) && !(informed && info->si_code <= 0))
        return false;
    if (action.flags & SA_RESETHAND) {
        action.handler = pm_postponing;
        pm_action_set(number, &action, NULL);
    }
    return informed ? pm_bare_call(SYS_rt_tgsigqueueinfo, self, thread, number, (long)info) == 0
                    : pm_bare_call(SYS_tgkill, self, thread, number, 0) == 0;
}

// All signals are blocked first: with SA_NODEFER this one would arrive here at once. A handler that
// interrupts this function before that waits, too; then the outer one's mask is the right one. A
// signal that cannot be sent again, because too many are pending, is handled at once.
__attribute__((noinline, cold)) static bool postpone(int number, siginfo_t *info,
                                                     ucontext_t *context) {
    uint64_t *mask = (uint64_t *)(void *)&context->uc_sigmask, all = ~(FAULTS | LIBCS), here;
    if (atomic_load_explicit(&never, memory_order_relaxed))
        return false;
    pm_bare_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&all, (long)&here, sizeof all);
    if (!send_again(number, info)) {
        pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&here, 0, sizeof here);
        return false;
    }
    mask_outside = *mask;
    signal_waits = true;
    pm_postponed = true;
    *mask |= all | BIT(number);
    return true;
}

// The handler may not come back: longjmp(). Or it may go on elsewhere: it changes the context.
__attribute__((noinline)) static void leave_call(int number, siginfo_t *info, ucontext_t *context) {
    const greg_t *reg = context->uc_mcontext.gregs;
    greg_t at = reg[REG_RIP], stack = reg[REG_RSP];
    struct pm_call *call = pm_calls_step_out();
    pm_postpone_noted(number)(number, info, context);
    if (call && reg[REG_RIP] == at && reg[REG_RSP] == stack)
        pm_calls_step_in(call);
}

// The thread is in no call, but the holder may not know that it runs: where /proc lists no threads,
// one that has made no call yet may be on no list; one that has just left a call was seen asleep in
// it. Such a thread has not looked at the word since. So it does before its handler runs.
__attribute__((noinline, cold)) static void appear(void) {
    struct pm_call none = {0};
    if (!pm_calls_own)
        pm_thread_list_add();
    pm_call_enter(&none);
    pm_call_leave(&none);
}

static inline bool is_unseen(void) {
    return pm_calls_recorded && (!pm_calls_own || (pm_calls_held() && pm_inside == 0));
}

static inline void handle(int number, siginfo_t *info, void *context) {
    if (__builtin_expect(pm_calls_in_one(), 0)) {
        leave_call(number, info, context);
    } else {
        if (__builtin_expect(is_unseen(), 0))
            appear();
        pm_postpone_noted(number)(number, info, context);
    }
}

// In the section of hold.c: a thread may rest here as it may in the handler. Where faults come one
// after the other, this is where it is found.
__attribute__((section("pm_inner_calls"))) void pm_postponing(int number, siginfo_t *info,
                                                              void *context) {
    // What is not there for such a child is there now. If that was not why, the fault comes again.
    if (!pm_is_here() && number == SIGSEGV && pm_here_lost())
        return;
    if (__builtin_expect(pm_inside != 0, 0) && postpone(number, info, context))
        return;
    pm_heard.others++;
    if (__builtin_expect(repeated != 0, 0))
        end_call(number, context);
    uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP];
    if (__builtin_expect(pm_signal_stack_has((uintptr_t)context, at), 0))
        pm_signal_stack_move(handle, number, info, context);
    handle(number, info, context);
}

void pm_postponed_arrive(void) {
    uint64_t mask = mask_outside;
    bool signal = signal_waits;
    pm_postponed = signal_waits = false;
    pm_event_hooks_run();
    if (signal)
        pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof mask);
}
