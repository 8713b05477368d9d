// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Starts a program that has nothing to do with its heap, and inherits the environment:
//   descent user | pidns | proc | both   as another user, in a new PID namespace, with a /proc of
//                                        its own there; the last and the first
//   descent again                        prints what the root holds
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

char *root;
static char *own;

static void be_another(void) {
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
        _exit(77);
}

static void execute(void) {
    execl(own, own, "child", (char *)NULL);
    _exit(76);
}

// The first process of the new namespace starts the program, which is told nothing of its parent.
static void start(const char *how) {
    int proc = strcmp(how, "proc") == 0 || strcmp(how, "both") == 0;
    if (strcmp(how, "user") != 0 && unshare(CLONE_NEWPID) != 0)
        exit(77);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        if (proc && (unshare(CLONE_NEWNS) != 0 ||
                     mount("none", "/proc", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
                     mount("proc", "/proc", "proc", 0, NULL) != 0))
            _exit(77);
        if (strcmp(how, "user") == 0 || strcmp(how, "both") == 0)
            be_another();
        execute();
    }
    int status = -1;
    waitpid(pid, &status, 0);
    printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

// More than a little, so that it would get a heap.
static void child(void) {
    for (int i = 0; i < 2000; i++)
        root = memset(malloc(100), i, 100);
    printf("child %d %d\n", (int)getuid(), root[99]);
}

int main(int argc, char **argv) {
    own = argv[0];
    if (argc < 2)
        return 1;
    if (strcmp(argv[1], "child") == 0) {
        child();
    } else if (strcmp(argv[1], "again") == 0) {
        printf("%s\n", root ? root : "nothing");
    } else {
        root = strcpy(malloc(100), "parent's");
        start(argv[1]);
        printf("%s\n", root);
    }
    return 0;
}
