// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A service under filters that end it for one call each, as a service manager's do.
//
//   expelled start CALLS...    the filters are there before it starts: it executes itself, with
//                              EXPELLED_PRELOAD as its LD_PRELOAD
//   expelled later CALLS...    it installs them amid its work
//
// It counts its runs in a root, uses and frees memory in blocks of 40 MiB, answers on a socket,
// says how many runs there were, and kills itself.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "call_filter.h"

#define LARGE ((size_t)40 << 20)

static const struct {
    const char *name;
    unsigned number;
} calls[] = {{"mincore", SYS_mincore},
             {"process_vm_readv", SYS_process_vm_readv},
             {"process_madvise", SYS_process_madvise},
             {"kcmp", SYS_kcmp},
             {"userfaultfd", SYS_userfaultfd}};

long *runs;
int pmalloc_commit(void) __attribute__((weak));

static void forbid(char *const *names) {
    for (; *names; names++)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
            if (strcmp(*names, calls[i].name) == 0 &&
                !filter_call(calls[i].number, SECCOMP_RET_KILL_PROCESS))
                exit(3);
}

static bool is_zero(const char *block) {
    return block && block[0] == 0 && memcmp(block, block + 1, LARGE - 1) == 0;
}

static bool work(int socket, char *const *later) {
    bool good = true;
    for (int i = 0; i < 4 && good; i++) {
        char answer = 0, *block = malloc(LARGE);
        if (i == 2)
            forbid(later);
        memset(block, 7, LARGE);
        ++*(volatile char *)block;
        free(block);
        block = calloc(1, LARGE);
        good = is_zero(block) && write(socket, "a", 1) == 1 && read(socket + 1, &answer, 1) == 1 &&
               answer == 'a';
        free(block);
    }
    return good;
}

int main(int argc, char **argv) {
    static char *none[] = {NULL};
    int pair[2];
    if (argc < 2)
        return 2;
    bool start = strcmp(argv[1], "start") == 0;
    if (start && getenv("EXPELLED_PRELOAD")) {
        setenv("LD_PRELOAD", getenv("EXPELLED_PRELOAD"), 1);
        unsetenv("EXPELLED_PRELOAD");
        forbid(argv + 2);
        execv("/proc/self/exe", argv);
        return 3;
    }
    runs = runs ? runs : calloc(1, sizeof *runs);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || dup2(pair[0], 100) != 100 ||
        dup2(pair[1], 101) != 101 || !work(100, start ? none : argv + 2))
        return 1;
    printf("%ld\n", ++*runs);
    if (pmalloc_commit) // under COMMIT=20ms none may have come by itself
        pmalloc_commit();
    fflush(stdout);
    kill(getpid(), SIGKILL);
    return 1;
}
