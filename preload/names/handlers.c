// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// sigaction() and its kin: the kernel gets pm_postponing() (threads/postpone.h) in the place of a
// handler of the program's. The program sees its own handler, whatever it asks.
//
// The handler is noted before the kernel knows of it, and is not forgotten when the signal gets its
// default: a handler may just begin. To the kernel the default of SIGSEGV may be pm_stray_fault()
// (fork/stray.h), which the program does not see either. In a child that shares this memory, or
// has a copy of it without the fork handlers, handlers go to the kernel as they are.
#include "handlers.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "base/bare_thread.h"
#include "base/signal_stack.h"
#include "export.h"
#include "fork/stray.h"
#include "next.h"
#include "threads/action.h"
#include "threads/postpone.h"

#define SIGNALS 64

static bool is_function(const void *handler) {
    return handler != (void *)SIG_DFL && handler != (void *)SIG_IGN && handler != (void *)SIG_ERR;
}

// What is to be changed, and how it was.
struct change {
    pm_handler *before; // as noted
    void *given;        // for the kernel
    int number;
    bool noted;
};

static struct change begin(int number, void *handler, bool function) {
    struct change c = {NULL, handler, number, false};
    if (number < 1 || number > SIGNALS)
        return c;
    c.before = pm_postpone_noted(number);
    if (!function || !pm_postpone_is_here())
        return c;
    c.noted = true;
    c.given = (void *)(uintptr_t)pm_postponing;
    pm_postpone_note(number, (pm_handler *)(uintptr_t)handler);
    return c;
}

static bool is_default(const void *handler) { return handler == (void *)(uintptr_t)pm_stray_fault; }

// The kernel has been asked, and has changed it or not.
static void end(const struct change *c, bool good, bool changes) {
    if (!good && c->noted)
        pm_postpone_note(c->number, c->before);
    if (!good || !changes)
        return;
    pm_postpone_changed();
    if (c->number == SIGSEGV && c->given == (void *)SIG_DFL && pm_postpone_is_here())
        pm_stray_listen();
}

static void *as_seen(const struct change *c, void *handler) {
    if (is_default(handler))
        return (void *)SIG_DFL;
    return handler == (void *)(uintptr_t)pm_postponing ? (void *)(uintptr_t)c->before : handler;
}

// ---- sigaction ----------------------------------------------------------------------------------

typedef int action_fn(int, const struct sigaction *, struct sigaction *);

static int change_action(action_fn *next, int number, const struct sigaction *to,
                         struct sigaction *was) {
    struct sigaction copy = to ? *to : (struct sigaction){0};
    struct change c = begin(number, (void *)(uintptr_t)copy.sa_sigaction,
                            to && is_function((void *)(uintptr_t)copy.sa_sigaction));
    copy.sa_sigaction = (pm_handler *)(uintptr_t)c.given;
    int result = next(number, to ? &copy : NULL, was);
    end(&c, result == 0, to != NULL);
    if (result != 0)
        return result;
    if (was && is_default((void *)(uintptr_t)was->sa_sigaction))
        *was = (struct sigaction){.sa_handler = SIG_DFL};
    else if (was)
        was->sa_sigaction =
            (pm_handler *)(uintptr_t)as_seen(&c, (void *)(uintptr_t)was->sa_sigaction);
    return result;
}

#define ACTION(name)                                                                               \
    EXPORT action_fn pm_handlers_##name __asm__(#name);                                            \
    EXPORT int pm_handlers_##name(int number, const struct sigaction *to, struct sigaction *was) { \
        static _Atomic(void *) known;                                                              \
        action_fn *next;                                                                           \
        *(void **)&next = pm_next(&known, #name);                                                  \
        if (!next)                                                                                 \
            return -1;                                                                             \
        return change_action(next, number, to, was);                                               \
    }
ACTION(sigaction)
#ifdef __GLIBC__
ACTION(__sigaction)
#endif

// ---- signal and its kin -------------------------------------------------------------------------

typedef void handler_fn(int);
typedef handler_fn *signal_fn(int, handler_fn *);

#ifndef SIG_HOLD
#define SIG_HOLD ((handler_fn *)2)
#endif

static handler_fn *change_handler(signal_fn *next, int number, handler_fn *to) {
    struct change c =
        begin(number, (void *)(uintptr_t)to, is_function((void *)(uintptr_t)to) && to != SIG_HOLD);
    handler_fn *was = next(number, (handler_fn *)(uintptr_t)c.given);
    end(&c, was != SIG_ERR, true);
    return (handler_fn *)(uintptr_t)as_seen(&c, (void *)(uintptr_t)was);
}

#define SIGNAL(name)                                                                               \
    EXPORT signal_fn pm_handlers_##name __asm__(#name);                                            \
    EXPORT handler_fn *pm_handlers_##name(int number, handler_fn *to) {                            \
        static _Atomic(void *) known;                                                              \
        signal_fn *next;                                                                           \
        *(void **)&next = pm_next(&known, #name);                                                  \
        if (!next)                                                                                 \
            return SIG_ERR;                                                                        \
        return change_handler(next, number, to);                                                   \
    }
SIGNAL(signal)
SIGNAL(bsd_signal)
SIGNAL(__sysv_signal)
SIGNAL(sigset)
#ifdef __GLIBC__
SIGNAL(ssignal)
SIGNAL(sysv_signal)
#endif

// ---- sigaltstack --------------------------------------------------------------------------------

EXPORT int pm_handlers_sigaltstack(const stack_t *to, stack_t *was) __asm__("sigaltstack");
EXPORT int pm_handlers_sigaltstack(const stack_t *to, stack_t *was) {
    long result = pm_signal_stack_set(to, was);
    if (result >= 0)
        return 0;
    errno = (int)-result;
    return -1;
}

// ---- by its number ------------------------------------------------------------------------------

long pm_handlers_syscall(long number, const struct pm_action *to, struct pm_action *was,
                         size_t size) {
    // The kernel refuses an action that cannot be read; 99 stands for nothing that it would do.
    if (to && (pm_bare_call(SYS_rt_sigprocmask, 99, (long)to, 0, 8) == -EFAULT ||
               pm_bare_call(SYS_rt_sigprocmask, 99, (long)&to->mask, 0, 8) == -EFAULT))
        return -EFAULT;
    struct pm_action copy = to ? *to : (struct pm_action){0};
    struct change c = begin((int)number, (void *)(uintptr_t)copy.handler,
                            to && is_function((void *)(uintptr_t)copy.handler));
    copy.handler = (pm_handler *)(uintptr_t)c.given;
    long result =
        pm_bare_call(SYS_rt_sigaction, number, (long)(to ? &copy : NULL), (long)was, (long)size);
    end(&c, result == 0, to != NULL);
    if (result != 0)
        return result;
    if (was && is_default((void *)(uintptr_t)was->handler))
        *was = (struct pm_action){0};
    else if (was)
        was->handler = (pm_handler *)(uintptr_t)as_seen(&c, (void *)(uintptr_t)was->handler);
    return result;
}
