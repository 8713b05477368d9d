// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "guardian.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALL_CLOSE_RANGE 436 // older headers lack it

static _Noreturn void guard(int end, void work(int end, void *arg), void *arg) {
    sigset_t all;
    if (end > 0)
        syscall(CALL_CLOSE_RANGE, 0, end - 1, 0);
    syscall(CALL_CLOSE_RANGE, end + 1, ~0u, 0);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    work(end, arg);
    _exit(0);
}

bool guardian_begin(struct guardian *g, void work(int end, void *arg), void *arg) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return false;
    g->pid = fork();
    if (g->pid == 0)
        guard(ends[1], work, arg);
    int error = errno;
    close(ends[1]);
    if (g->pid < 0)
        close(ends[0]);
    g->end = ends[0];
    errno = error;
    return g->pid > 0;
}

void guardian_end(struct guardian *g) {
    close(g->end);
    while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}
