// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Forks for which the kernel refuses something: a descriptor, a process, a thread, memory, a
// namespace.
#include "forks.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "call_filter.h"

void no_descriptors(size_t megabytes) {
    build(megabytes, 1);
    fflush(NULL);
    while (dup(STDERR_FILENO) >= 0) {
    }
    CHECK(errno == EMFILE);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        usleep(100000);
        check_all(1);
        _exit(0);
    }
    fill_all(2);
    churn(2);
    CHECK(ended(pid) == 0);
    check_all(2);
}

// clone() fails, so the parent's handler runs without a child.
void no_process(size_t megabytes) {
    build(megabytes, 1);
    CHECK(filter_call(SYS_clone, SECCOMP_RET_ERRNO | EAGAIN));
    for (int i = 0; i < 100; i++) {
        errno = 0;
        CHECK(fork() == -1 && errno == EAGAIN);
    }
    fill_all(2);
    churn(2);
    check_all(2);
}

// The fork's clone() succeeds, but the copier's clone() is refused.
void no_copier(size_t megabytes) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof code[0], code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    isolation(megabytes);
}

void data_limit(size_t megabytes) {
    struct rlimit limit = {MIB, MIB}; // less than the process has already
    build(megabytes, 1);
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    pid_t pid = forked();
    if (!pid)
        _exit(0);
    printf("child %d\n", ended(pid));
    fill_all(2);
    check_all(2);
}

// The child does at once what only a process of one thread may do. Its copier ends at that moment:
// many rounds, because the kernel needs a little longer than the copier's own memory shows.
void namespaces(size_t megabytes) {
    build(megabytes, 1);
    for (int round = 0; round < 40; round++) {
        pid_t pid = forked();
        if (!pid) {
            if (unshare(CLONE_NEWUSER) != 0)
                _exit(errno == EINVAL ? 1 : 77);
            check_all(1);
            _exit(0);
        }
        int status = ended(pid);
        CHECK(status == 0 || status == 77);
    }
    fill_all(2);
}
