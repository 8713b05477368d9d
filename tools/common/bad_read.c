// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "bad_read.h"

#include <signal.h>
#include <stdatomic.h>
#include <ucontext.h>
#include <unistd.h>

#include "media/backing/file_at.h"

// Whoever is first speaks for all threads. Nothing that stands in buffers is printed: a report
// would be cut short.
static void on_bus(int number, siginfo_t *info, void *context) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    static struct pm_error err;
    const ucontext_t *at = context;
    bool store = at->uc_mcontext.gregs[REG_ERR] & 2; // as the processor reports page faults
    if (atomic_flag_test_and_set(&told))
        for (;;)
            pause();
    if (info->si_code > 0 && pm_file_unreadable(info->si_addr, store, "run this", &err)) {
        pm_say("%s", err.text);
        _exit(PM_OPERATIONAL);
    }
    signal(number, SIG_DFL); // the fault comes again
    if (info->si_code <= 0)
        raise(number);
}

void bad_reads_catch(void) {
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigset_t bus;
    sigfillset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    sigprocmask(SIG_UNBLOCK, &bus, NULL);
}
