// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What we think a seccomp filter says, beside what the kernel does: each filter is installed in a
// child, which makes the call.
#include "threads/filter.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define CALL SYS_getpgid
#define SAYS(bits) BPF_STMT(BPF_RET | BPF_K, bits)
#define ALLOW SAYS(SECCOMP_RET_ALLOW)
#define FAIL SAYS(SECCOMP_RET_ERRNO | EXDEV)
#define KILL SAYS(SECCOMP_RET_KILL_PROCESS)
#define NR BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define ARCH BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch))
#define SECOND BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]))
#define IF(how, k, yes, no) BPF_JUMP(BPF_JMP | (how) | BPF_K, k, yes, no)
#define ALU(how, k) BPF_STMT(BPF_ALU | (how) | BPF_K, k)

static const struct sock_filter all[] = {ALLOW}, one[] = {NR, IF(BPF_JEQ, CALL, 0, 1), KILL, ALLOW},
                                other[] = {NR, IF(BPF_JEQ, 7, 0, 1), KILL, ALLOW},
                                fails[] = {NR, IF(BPF_JEQ, CALL, 1, 0), ALLOW, FAIL},
                                range[] = {NR, IF(BPF_JGE, CALL, 0, 2), IF(BPF_JGT, CALL, 1, 0),
                                           FAIL, ALLOW},
                                bits[] = {SECOND, IF(BPF_JSET, 2, 0, 1), KILL, ALLOW},
                                of_arch[] = {NR,
                                             IF(BPF_JEQ, CALL, 1, 0),
                                             ALLOW,
                                             ARCH,
                                             IF(BPF_JEQ, AUDIT_ARCH_X86_64, 0, 1),
                                             FAIL,
                                             ALLOW},
                                moved[] = {NR,
                                           ALU(BPF_ADD, 5),
                                           ALU(BPF_MUL, 3),
                                           ALU(BPF_SUB, 15),
                                           ALU(BPF_DIV, 3),
                                           ALU(BPF_XOR, 1),
                                           ALU(BPF_LSH, 4),
                                           ALU(BPF_RSH, 4),
                                           BPF_STMT(BPF_ST, 3),
                                           BPF_STMT(BPF_LD | BPF_IMM, 0),
                                           BPF_STMT(BPF_LDX | BPF_MEM, 3),
                                           BPF_STMT(BPF_MISC | BPF_TXA, 0),
                                           IF(BPF_JEQ, CALL ^ 1, 0, 1),
                                           FAIL,
                                           ALLOW},
                                by_x[] = {BPF_STMT(BPF_LDX | BPF_IMM, CALL),
                                          NR,
                                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_X, 0, 0, 1),
                                          FAIL,
                                          BPF_STMT(BPF_LD | BPF_IMM, SECCOMP_RET_ALLOW),
                                          BPF_STMT(BPF_RET | BPF_A, 0)},
                                jumps[] = {BPF_STMT(BPF_JMP | BPF_JA, 1),
                                           KILL,
                                           BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
                                           IF(BPF_JEQ, sizeof(struct seccomp_data), 0, 2),
                                           NR,
                                           IF(BPF_JEQ, CALL, 1, 0),
                                           ALLOW,
                                           FAIL};

#define FILTER(name)                                                                               \
    { sizeof(name) / sizeof(*name), (struct sock_filter *)(uintptr_t)name }
static const struct sock_fprog filters[] = {
    FILTER(all),  FILTER(one),     FILTER(other), FILTER(fails), FILTER(range),
    FILTER(bits), FILTER(of_arch), FILTER(moved), FILTER(by_x),  FILTER(jumps)};

static _Noreturn void try(const struct sock_fprog *filter, long second) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter) != 0)
        syscall(SYS_exit, 9);
    long result = syscall(CALL, 0, second);
    // The filter sees the second argument of this call, too, so it must not be left to chance.
    syscall(SYS_exit, result < 0 && errno == EXDEV ? PM_FILTER_FAILS : PM_FILTER_ALLOWS, 0L);
    __builtin_unreachable();
}

static enum pm_filter_verdict kernels(const struct sock_fprog *filter, long second) {
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        try(filter, second);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 9);
    return WIFEXITED(status) ? (enum pm_filter_verdict)WEXITSTATUS(status) : PM_FILTER_ENDS;
}

int main(void) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        for (long second = 0; second < 4; second++)
            CHECK(pm_filter_asks(&filters[i], CALL, (uint64_t)second) ==
                  kernels(&filters[i], second));
    CHECK(pm_filter_asks(NULL, SYS_futex, 0) == PM_FILTER_ENDS);
    CHECK(pm_filter_asks(NULL, SYS_read, 0) == PM_FILTER_ALLOWS);
    const struct sock_filter endless[] = {NR}, odd[] = {{0xffff, 0, 0, 0}, ALLOW};
    CHECK(pm_filter_asks(&(const struct sock_fprog)FILTER(endless), CALL, 0) == PM_FILTER_ENDS);
    CHECK(pm_filter_asks(&(const struct sock_fprog)FILTER(odd), CALL, 0) == PM_FILTER_ENDS);
    return CHECK_DONE();
}
