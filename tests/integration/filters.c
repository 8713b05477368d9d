// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A program that installs a seccomp filter which ends it for each other call. HOW CALLS [exit]
//   HOW      prctl, syscall: by that function; tsync: for all threads; strict: without a filter
//   CALLS    -a,b: all calls but these are allowed; +a,b: these alone, and what it needs itself
//   exit     it ends by exit(), or else at once, without the destructors
//   broken   the kernel refuses the filter
// The root `value` is 1 when the filter is installed, and then 2. A destructor makes it 3.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CALL(name)                                                                                 \
    { #name, SYS_##name }
static const struct {
    const char *name;
    int number;
} calls[] = {CALL(rt_sigreturn), CALL(gettid),       CALL(getpid),   CALL(rt_sigprocmask),
             CALL(futex),        CALL(getdents64),   CALL(openat),   CALL(mmap),
             CALL(munmap),       CALL(rt_sigaction), CALL(pwrite64), CALL(madvise)};
#define CALLS (sizeof calls / sizeof *calls)

static const int own[] = {SYS_write, SYS_poll, SYS_exit_group, SYS_exit};

int value, *block;

static bool is_listed(const char *list, const char *name) {
    const char *at = strstr(list, name);
    size_t len = strlen(name);
    return at && (at[-1] == ',' || at == list + 1) && (!at[len] || at[len] == ',');
}

static int filter(const char *how, const char *list, bool broken) {
    struct sock_filter code[2 * CALLS + 2 * sizeof own / sizeof *own + 4];
    bool only = *list == '+';
    unsigned short n = 0;
    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < CALLS; i++) {
        if (!is_listed(list, calls[i].name))
            continue;
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                 (uint32_t)calls[i].number, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, only ? SECCOMP_RET_ALLOW
                                                                       : SECCOMP_RET_KILL_PROCESS);
    }
    for (size_t i = 0; only && i < sizeof own / sizeof *own; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)own[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
                                             only ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ALLOW);
    if (broken)
        code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_IMM, 0); // no end
    struct sock_fprog program = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -1;
    if (strcmp(how, "strict") == 0)
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (strcmp(how, "prctl") == 0)
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    unsigned flags = strcmp(how, "tsync") == 0 ? SECCOMP_FILTER_FLAG_TSYNC : 0;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

static void say(const char *what) {
    if (write(1, what, strlen(what)) < 0)
        _exit(9);
}

__attribute__((destructor)) static void last(void) {
    value = 3;
    free(block);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        printf("%d\n", value);
        return 0;
    }
    bool strict = strcmp(argv[1], "strict") == 0, broken = argc > 3 && !strcmp(argv[3], "broken");
    block = malloc(sizeof *block);
    free(malloc(200)); // what more memory needs is another matter
    value = *block = 1;
    if (filter(argv[1], argv[2], broken) != 0 && !broken)
        return 3;
    value = *block = 2;
    for (int i = 0; i < 40; i++) {
        void *some = malloc(200);
        if (!strict)
            poll(NULL, 0, 2);
        free(some);
        say(".");
    }
    say("done\n");
    if (argc > 3)
        exit(7);
    for (;;)
        syscall(strict ? SYS_exit : SYS_exit_group, 7);
}
