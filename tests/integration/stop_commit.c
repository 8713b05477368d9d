// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Runs a program and kills it at one of the steps by which a commit changes files: a write (before
// it, or when half is done), a sync, a length, a hole. Steps count from when the journal is made,
// or from the first write if the heap is on a fixed medium, a file that is called "medium".
// It traces system calls, so it sees them however the library makes them.
//
//   stop_commit N FILE PROGRAM...   N: killed at the N-th step, from 1 on; 0: never.
//                                   FILE gets the number of steps that there were
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define TRACED (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)

static pid_t program;
static unsigned long steps, last;
static bool counts; // the journal is there
static bool fixed;
static bool halved; // the call that runs now is the last step: half a write

static bool step(void) { return counts && ++steps == last; }

static bool makes_journal(pid_t thread, const struct user_regs_struct *regs) {
    char path[8] = "";
    struct iovec here = {path, sizeof path}, there = {(void *)regs->rsi, sizeof path};
    if (regs->orig_rax != SYS_openat || !(regs->rdx & O_CREAT))
        return false;
    process_vm_readv(thread, &here, 1, &there, 1, 0);
    return memcmp(path, "journal", sizeof path) == 0;
}

// At the entry of a call. True: the program is killed here.
static bool enter(pid_t thread) {
    struct user_regs_struct regs;
    ptrace(PTRACE_GETREGS, thread, NULL, &regs);
    switch (regs.orig_rax) {
    case SYS_pwrite64:
        counts |= fixed;
        if (step())
            return true;
        if (regs.rdx <= sizeof(uint64_t) || !step()) // a kill cannot halve a word
            return false;
        halved = true;
        regs.rdx /= 2;
        ptrace(PTRACE_SETREGS, thread, NULL, &regs);
        return false;
    case SYS_fdatasync:
    case SYS_fsync:
    case SYS_fallocate:
    case SYS_ftruncate:
        return step();
    default:
        counts |= makes_journal(thread, &regs);
        return false;
    }
}

static bool is_entry(pid_t thread) {
    struct __ptrace_syscall_info info = {0};
    ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info);
    return info.op == PTRACE_SYSCALL_INFO_ENTRY;
}

// A thread has stopped. The signal that it is to go on with; SIGKILL: the program ends here.
static int go_on_with(pid_t thread, int status) {
    int stop = WSTOPSIG(status);
    if (stop == (SIGTRAP | 0x80))
        return is_entry(thread) ? (enter(thread) ? SIGKILL : 0) : halved ? SIGKILL : 0;
    return status >> 16 || stop == SIGSTOP || stop == SIGTRAP ? 0 : stop;
}

static int follow(void) {
    for (;;) {
        int status;
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0)
            return 1;
        if (thread == program && !WIFSTOPPED(status))
            return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (!WIFSTOPPED(status))
            continue;
        int with = go_on_with(thread, status);
        if (with == SIGKILL)
            kill(program, SIGKILL);
        else
            ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(long)with);
    }
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    last = strtoul(argv[1], NULL, 10);
    const char *heap = getenv("PMALLOC_HEAP"), *name = heap ? strrchr(heap, '/') : NULL;
    fixed = name && strcmp(name, "/medium") == 0;
    program = fork();
    if (program == 0) {
        setenv("LD_PRELOAD", getenv("preload"), 1);
        raise(SIGSTOP);
        execv(argv[3], argv + 3);
        _exit(127);
    }
    waitpid(program, NULL, WUNTRACED);
    if (ptrace(PTRACE_SEIZE, program, NULL, TRACED) != 0)
        return 2;
    ptrace(PTRACE_SYSCALL, program, NULL, NULL);
    kill(program, SIGCONT);
    int status = follow();
    FILE *out = fopen(argv[2], "w");
    if (!out || fprintf(out, "%lu\n", steps) < 0 || fclose(out) != 0)
        return 2;
    return status;
}
