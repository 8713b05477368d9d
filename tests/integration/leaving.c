// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Ends that run no destructor. usage: leaving exit|Exit|signal|vfork|atexit|refused|wait. Prints
// whether the default heap is there as long as it is needed.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void heap_is_there(const char *when) {
    char path[200];
    snprintf(path, sizeof path, "/dev/shm/pmalloc-%u/pmtest_leaving/superblock",
             (unsigned)geteuid());
    printf("%s: %s\n", when, access(path, R_OK) == 0 ? "there" : "gone");
    fflush(stdout);
}

static void on_signal(int number) { _exit(number == SIGUSR1 ? 5 : 1); }

static void late(void) { _exit(5); }

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    int status = 0;
    void *volatile block = malloc(100000);
    heap_is_there("start");
    if (strcmp(how, "exit") == 0)
        _exit(5);
    if (strcmp(how, "Exit") == 0)
        _Exit(5);
    if (strcmp(how, "signal") == 0) {
        signal(SIGUSR1, on_signal);
        raise(SIGUSR1);
    }
    if (strcmp(how, "atexit") == 0) {
        atexit(late);
        return 4;
    }
    if (strcmp(how, "vfork") == 0) {
        pid_t child = vfork();
        if (child == 0)
            _exit(7);
        waitpid(child, &status, 0);
        heap_is_there("after vfork");
        child = fork();
        if (child == 0)
            _exit(8);
        waitpid(child, &status, 0);
        heap_is_there("after fork");
        for (int i = 1; i < 3000; i++)
            memset(malloc((size_t)i * 100), i, (size_t)i * 100);
        free(block);
        return 5;
    }
    if (strcmp(how, "refused") ==
        0) { // PMALLOC_FORK=follow: no memory for what the parent goes on with
        const struct rlimit none = {1, RLIM_INFINITY};
        pid_t parent = getpid();
        if (setrlimit(RLIMIT_DATA, &none) == 0 && fork() == 0) {
            while (getppid() == parent)
                usleep(1000);
            heap_is_there("child");
            _exit(0);
        }
    }
    pause();
    return 1;
}
