// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A hold has interrupted a call that the kernel begins again. A handler of the program's that comes
// before that ends the call, as it would have without the hold.
#include "threads/postpone.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "check.h"

#define CALL_BYTES 2

static unsigned handled;
static void count(int number, siginfo_t *info, void *context) {
    (void)number;
    (void)info;
    (void)context;
    handled++;
}

// Anywhere: nothing of it is run.
static char code[64], stack[64];

static ucontext_t at_call(const char *call) {
    ucontext_t context = {0};
    greg_t *reg = context.uc_mcontext.gregs;
    reg[REG_RIP] = (greg_t)(uintptr_t)call;
    reg[REG_RCX] = reg[REG_RIP] + CALL_BYTES;
    reg[REG_RAX] = SYS_flock;
    reg[REG_RSP] = (greg_t)(uintptr_t)stack;
    return context;
}

static ucontext_t elsewhere(void) {
    ucontext_t context = at_call(code + 32);
    context.uc_mcontext.gregs[REG_RCX] = 0;
    return context;
}

static bool is_ended(ucontext_t *context, const char *call) {
    siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_TKILL};
    unsigned before = handled;
    pm_postponing(SIGUSR1, &info, context);
    CHECK(handled == before + 1);
    const greg_t *reg = context->uc_mcontext.gregs;
    return reg[REG_RAX] == -EINTR && reg[REG_RIP] == (greg_t)(uintptr_t)call + CALL_BYTES;
}

static void handle_with(int flags) {
    const struct sigaction action = {.sa_sigaction = pm_postponing, .sa_flags = SA_SIGINFO | flags};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
}

static void test_a_handler_ends_the_call(void) {
    ucontext_t context = at_call(code);
    pm_postpone_repeats(&context);
    CHECK(is_ended(&context, code));
    context = at_call(code);
    CHECK(!is_ended(&context, code)); // once
}

static void test_another_hold_comes_at_the_handlers_first_instruction(void) {
    ucontext_t context = at_call(code), handler = elsewhere();
    pm_postpone_repeats(&context);
    pm_postpone_repeats(&handler);
    CHECK(is_ended(&context, code));
}

static void test_what_was_not_interrupted_goes_on(void) {
    ucontext_t context = at_call(code), other = at_call(code + 16), running = elsewhere();
    pm_postpone_repeats(&context);
    CHECK(!is_ended(&other, code + 16));
    CHECK(!is_ended(&running, code + 32));
}

static void test_sa_restart(void) {
    ucontext_t context = at_call(code);
    handle_with(SA_RESTART);
    pm_postpone_repeats(&context);
    CHECK(!is_ended(&context, code));
}

int main(void) {
    pm_postpone_here();
    pm_postpone_note(SIGUSR1, count);
    handle_with(0);
    test_a_handler_ends_the_call();
    test_another_hold_comes_at_the_handlers_first_instruction();
    test_what_was_not_interrupted_goes_on();
    test_sa_restart();
    return CHECK_DONE();
}
