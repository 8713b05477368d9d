// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "bad_read.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "media/backing/file_at.h"

static struct sigaction before;
static bool blocked;   // the signal was, so a fault would have ended the process unheard
static long opener;    // the thread in which it was
static siginfo_t owed; // a signal that was pending there; it is sent again when that is over
static bool owes;
static struct pm_error *teller;
static atomic_flag told = ATOMIC_FLAG_INIT;

static bool is_store(const ucontext_t *context) {
    return context->uc_mcontext.gregs[REG_ERR] & 2; // as the processor reports page faults
}

// Whoever is first speaks for all threads. The buffer is no thread's, because a signal stack may be
// small.
static void end_process(const struct pm_error *err) {
    if (teller) {
        *teller = *err;
        for (;;)
            syscall(SYS_exit_group, 0);
    }
    pm_refuse(pm_event_of(err), "%s", err->text);
}

// A fault that is not ours comes again at once, under the program's own handler. A signal that was
// sent is sent again, at once or when the program blocks it again.
static void on_bus(int number, siginfo_t *info, void *context) {
    static struct pm_error err;
    int saved = errno;
    const ucontext_t *at = context;
    bool sent = info->si_code <= 0;
    struct pm_error *out = &err;
    if (sent && blocked && syscall(SYS_gettid) == opener) {
        owed = *info;
        owes = true;
        return;
    }
    if (!sent && atomic_flag_test_and_set(&told))
        for (;;)
            pause();
    if (!sent && pm_file_unreadable(info->si_addr, is_store(at), "start the program", out))
        end_process(out);
    atomic_flag_clear(&told);
    sigaction(number, &before, NULL);
    if (sent)
        syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
    errno = saved;
}

static void set_blocked(int how) {
    sigset_t bus;
    sigemptyset(&bus);
    sigaddset(&bus, SIGBUS);
    sigprocmask(how, &bus, NULL);
}

void pm_bad_reads_begin(void) {
    sigset_t mask;
    int saved = errno;
    // SA_ONSTACK: other threads of the program may have little of a stack beside that one.
    struct sigaction ours = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigfillset(&ours.sa_mask);
    sigaction(SIGBUS, &ours, &before);
    sigprocmask(SIG_BLOCK, NULL, &mask);
    blocked = sigismember(&mask, SIGBUS) == 1;
    if (blocked) {
        opener = syscall(SYS_gettid);
        set_blocked(SIG_UNBLOCK);
    }
    errno = saved;
}

// A handler that another thread has installed meanwhile stays.
void pm_bad_reads_end(void) {
    struct sigaction now;
    int saved = errno;
    if (blocked)
        set_blocked(SIG_BLOCK);
    if (owes)
        syscall(SYS_rt_tgsigqueueinfo, getpid(), opener, SIGBUS, &owed);
    owes = false;
    sigaction(SIGBUS, &before, &now);
    bool ours = (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_bus;
    if (!ours)
        sigaction(SIGBUS, &now, NULL);
    errno = saved;
}

void pm_bad_reads_tell(struct pm_error *err) {
    teller = err;
    pm_bad_reads_begin();
}
