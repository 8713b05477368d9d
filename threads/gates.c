// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "gates.h"

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "action.h"
#include "base/library.h"
#include "calls.h"
#include "postpone.h"

#define SIGNALS 64
#define BIT(s) (1ull << ((s)-1))

static struct pm_action handler_of[SIGNALS + 1];
static uint64_t gated;        // the signals that have a gate
static _Atomic uint32_t word; // odd while gates are closed; a futex
// How many wait at it: none is woken where none waits. Sequentially consistent, as in calls.c.
static _Atomic uint32_t waiting;

// A child of posix_spawn() begins with libc's own signals ignored (make, system(), popen()). Its
// libc may have handlers for them at any moment, and asks nobody: the first pthread_cancel() does.
// So they are blocked like those that have one.
static bool is_libcs(int number) { return number >= 32 && number <= 34; }

static bool is_ignored(int number, const struct pm_action *action) {
    if (is_libcs(number))
        return false;
    if (action->handler == (void *)SIG_DFL)
        return number == SIGCHLD || number == SIGURG || number == SIGWINCH || number == SIGCONT;
    return action->handler == (void *)SIG_IGN;
}

// As long as the program has changed nothing by libc's functions; pm_gates_close() sees what it did
// without them.
static uint64_t known;
static uint32_t known_at;
static bool is_known;

uint64_t pm_signals_ignored(void) {
    uint32_t changes = pm_postpone_changes();
    struct pm_action action;
    if (is_known && known_at == changes)
        return known;
    known = 0;
    for (int s = 1; s <= SIGNALS; s++)
        if (pm_action_set(s, NULL, &action) == 0 && is_ignored(s, &action))
            known |= BIT(s);
    known_at = changes;
    is_known = true;
    return known;
}

// The handler is read before the wait, because no holder changes it then.
static void gate(int number, siginfo_t *info, void *context) {
    struct pm_action theirs = handler_of[number];
    uint32_t now;
    pm_calls_resting(true);
    atomic_fetch_add(&waiting, 1);
    while ((now = atomic_load(&word)) & 1)
        pm_bare_call(SYS_futex, (long)&word, FUTEX_WAIT_PRIVATE, now, 0);
    atomic_fetch_sub(&waiting, 1);
    pm_calls_resting(false);
    if (theirs.flags & SA_RESETHAND) {
        struct pm_action none = {.flags = theirs.flags & ~(unsigned long)SA_SIGINFO};
        pm_action_set(number, &none, NULL);
    }
    theirs.handler(number, info, context);
}

// PMAlloc's own handlers know of holds. Where it is linked into a program, as in unit tests, its
// code tells nothing.
static bool is_stranger(const struct pm_action *action) {
    static _Atomic int program = -1;
    uintptr_t at = (uintptr_t)action->handler;
    if (action->handler == (void *)SIG_DFL || action->handler == (void *)SIG_IGN ||
        action->handler == pm_postponing)
        return false;
    if (program < 0)
        program = pm_library_is_program();
    return program || !pm_library_runs(at);
}

// What /proc says of a signal without a handler. About one with a handler the kernel is asked,
// because /proc does not tell whose it is.
static struct pm_action default_of(int number, const struct pm_tasks_state *state) {
    return (struct pm_action){.handler =
                                  state->ignored & BIT(number) ? (void *)SIG_IGN : (void *)SIG_DFL};
}

static bool ask_about(int number, const struct pm_tasks_state *state, struct pm_action *action) {
    if (!state || (state->caught & BIT(number)))
        return pm_action_set(number, NULL, action) == 0;
    *action = default_of(number, state);
    return true;
}

enum pm_gates pm_gates_close(int own, uint64_t ignored, const struct pm_tasks_state *state) {
    uint64_t handled = 0;
    gated = 0;
    atomic_fetch_add(&word, 1);
    for (int s = 1; s <= SIGNALS; s++) {
        struct pm_action action;
        if (s == own || !ask_about(s, state, &action))
            continue;
        handled |= is_ignored(s, &action) ? 0 : BIT(s);
        if (!is_stranger(&action))
            continue;
        handler_of[s] = action;
        action.handler = gate;
        action.flags &= ~(unsigned long)SA_RESETHAND;
        if (pm_action_set(s, &action, NULL) == 0)
            gated |= BIT(s);
    }
    is_known = !(handled & ignored);
    return !is_known ? PM_GATES_LATE : gated ? PM_GATES_CLOSED : PM_GATES_NONE;
}

void pm_gates_open(void) {
    if (!(word & 1))
        return;
    for (int s = 1; s <= SIGNALS; s++)
        if (gated & BIT(s))
            pm_action_set(s, &handler_of[s], NULL);
    atomic_fetch_add(&word, 1);
    if (atomic_load(&waiting))
        pm_bare_call(SYS_futex, (long)&word, FUTEX_WAKE_PRIVATE, 1 << 30, 0);
}
