// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Executes a program under a seccomp filter that ends it when it calls userfaultfd().
#include <sys/syscall.h>
#include <unistd.h>

#include "call_filter.h"
#include "holds.h"

int main(int argc, char **argv) {
    REQUIRE(argc > 1 && filter_call(SYS_userfaultfd, SECCOMP_RET_KILL_PROCESS));
    execv(argv[1], argv + 1);
    return 1;
}
