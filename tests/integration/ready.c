// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A service that knows nothing of sd_notify(3).
//
//   ready fill N     makes a list of N nodes and is killed
//   ready            says what it has of the service manager's, counts its list, waits for input
//   ready serve      adds a node to its list, counts it, says what it may do here, and waits for a
//                    signal
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct node {
    struct node *next;
    char filling[120];
} * list;

static const char *outcome(bool done) { return done ? "done" : strerrorname_np(errno); }

// What a locked-in service may not do; each word is "done" or the name of an error.
static void say_rights(void) {
    void *page =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const char *executable = outcome(page != MAP_FAILED);
    const char *root = outcome(mkdir("/pmalloc-test", 0700) == 0);
    const char *other = outcome(personality(ADDR_COMPAT_LAYOUT) >= 0);
    printf("uid %d executable %s root %s personality %s\n", (int)getuid(), executable, root, other);
}

static void serve(void) {
    struct node *node = calloc(1, sizeof *node);
    long count = 0;
    node->next = list;
    list = node;
    for (node = list; node; node = node->next)
        count++;
    printf("pid %d list %ld ", (int)getpid(), count);
    say_rights();
    fflush(stdout);
    for (;;)
        pause();
}

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value ? value : "-";
}

int main(int argc, char **argv) {
    long count = 0;
    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        serve();
    if (argc > 2 && strcmp(argv[1], "fill") == 0) {
        for (long left = atol(argv[2]); left > 0; left--) {
            struct node *node = calloc(1, sizeof *node);
            node->next = list;
            list = node;
        }
        raise(SIGKILL);
    }
    for (const struct node *node = list; node; node = node->next)
        count++;
    pid_t child = waitpid(-1, NULL, WNOHANG);
    printf("pid %d socket %s watchdog %s children %s list %ld\n", (int)getpid(),
           variable("NOTIFY_SOCKET"), variable("WATCHDOG_USEC"),
           child < 0 && errno == ECHILD ? "none" : "some", count);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}
