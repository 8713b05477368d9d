// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A hold begins between any two instructions of a thread that enters and leaves a call. Where the
// holder sees the call on record, the thread is not back in the program before the release, and no
// signal handler of the program's runs in it, wherever the signal comes.
#include "threads/calls.h"
#include "threads/postpone.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "check.h"

#define TRAP_FLAG 0x100
#define RED_ZONE 128
#define NEVER UINT_MAX
#ifdef __SANITIZE_ADDRESS__
#define PLACES 40
#else
#define PLACES 100
#endif
#define LONG_ENOUGH_US 300 // for a thread that runs on; if it is delayed, nothing is found

static _Atomic enum state { NOBODY, HOLD, HOLDS, END } state;
static _Atomic bool back; // in the program
static pid_t stepper;
static unsigned steps, chosen; // the instruction at which the hold begins
static unsigned signalled;     // the one at which a signal of the program's comes
static unsigned asleep, wrong;

// Two threads that wait for each other in turns take no processor from each other.
static void become(enum state next) {
    state = next;
    syscall(SYS_futex, &state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0L);
}

static void wait_while(enum state now) {
    while (state == now)
        syscall(SYS_futex, &state, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0L);
}

static void *hold_when_told(void *unused) {
    for (;;) {
        wait_while(NOBODY);
        if (state == END)
            return unused;
        pm_calls_hold(0);
        bool seen = pm_calls_look(stepper, false) == PM_CALL_ASLEEP;
        become(HOLDS);
        usleep(LONG_ENOUGH_US);
        asleep += seen;
        wrong += seen && back;
        pm_calls_release();
        become(NOBODY);
    }
}

static void step(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    unsigned now = steps++;
    if (now == chosen)
        become(HOLD);
    wait_while(HOLD);
    if (now == signalled)
        raise(SIGUSR1); // it comes when this handler is over
    if (now >= chosen && (signalled == NEVER || now >= signalled))
        ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
}

static void interrupt(int number, siginfo_t *info, void *context) {
    (void)number, (void)info, (void)context;
    back = true;
}

static inline void trap(uint64_t set, uint64_t clear) {
    __asm__ volatile("lea %c[zone](%%rsp), %%rsp\n\tpushfq\n\tandq %[keep], (%%rsp)\n\t"
                     "orq %[set], (%%rsp)\n\tpopfq\n\tlea -(%c[zone])(%%rsp), %%rsp"
                     :
                     : [zone] "i"(-RED_ZONE), [keep] "r"(~clear), [set] "r"(set)
                     : "memory", "cc");
}

static void whole_call(void) {
    struct pm_call call = {.kind = PM_CALL_WAITS};
    pm_call_enter(&call);
    pm_call_leave(&call);
}

// A handler of the program's interrupts the call.
static void handler_in_call(void) {
    struct pm_call call = {.kind = PM_CALL_WAITS};
    pm_call_enter(&call);
    struct pm_call *outer = pm_calls_step_out();
    back = true;
    wait_while(HOLDS); // it runs long
    trap(0, TRAP_FLAG);
    back = false;
    pm_calls_step_in(outer);
    pm_call_leave(&call);
}

static void run_with_hold_at(unsigned instruction, unsigned signal, void (*run)(void)) {
    chosen = instruction;
    signalled = signal;
    steps = 0;
    back = false;
    trap(TRAP_FLAG, 0);
    run();
    back = true;
    trap(0, TRAP_FLAG);
    wait_while(HOLDS);
}

static unsigned count_steps(void (*run)(void)) {
    run_with_hold_at(NEVER, NEVER, run);
    asleep = wrong = 0;
    return steps;
}

// Once for each instruction; where a sanitizer adds many, not for all of them.
static void at_each_step(void (*run)(void)) {
    unsigned all = count_steps(run), stride = 1 + all / 150;
    for (unsigned i = 0; i < all; i += stride)
        run_with_hold_at(i, NEVER, run);
    CHECK(all > 10);
    CHECK(asleep > 3);
    CHECK(wrong == 0);
}

// Once for each two of them; a sanitizer has other instructions, but no other places.
static void with_a_signal_later(void (*run)(void)) {
    unsigned all = count_steps(run), stride = 1 + all / PLACES;
    for (unsigned i = 0; i < all; i += stride)
        for (unsigned j = i; j < all; j += stride)
            run_with_hold_at(i, j, run);
    CHECK(asleep > PLACES);
    CHECK(wrong == 0);
}

int main(void) {
    pthread_t holder;
    struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
    const struct sigaction usual = {.sa_sigaction = pm_postponing, .sa_flags = SA_SIGINFO};
    sigaddset(&action.sa_mask, SIGUSR1);
    stepper = (pid_t)syscall(SYS_gettid);
    CHECK(pm_calls_record());
    pm_calls_trust(true);
    whole_call(); // its record is found
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    pm_postpone_note(SIGUSR1, interrupt);
    CHECK(sigaction(SIGUSR1, &usual, NULL) == 0);
    CHECK(pthread_create(&holder, NULL, hold_when_told, NULL) == 0);
    at_each_step(whole_call);
    at_each_step(handler_in_call);
    with_a_signal_later(whole_call);
    become(END);
    pthread_join(holder, NULL);
    return CHECK_DONE();
}
