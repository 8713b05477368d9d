// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What outbox.c and outbox_rules.c share: a socket pair, a pipe or a connection by TCP, what is
// said of a call, and the other end.
#ifndef OUTBOX_H
#define OUTBOX_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

uint64_t *value; // the root: how many answers there were

static int ours, theirs; // of a socket pair, a pipe, or a connection by TCP

static void say(const char *what, long result) {
    printf("%s: %ld%s%s\n", what, result, result < 0 ? " " : "",
           result < 0 ? strerrorname_np(errno) : "");
}

static void unix_pair(void) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        exit(9);
    ours = pair[0];
    theirs = pair[1];
}

static void pipe_pair(void) {
    int pair[2];
    if (pipe2(pair, O_CLOEXEC) != 0)
        exit(9);
    theirs = pair[0];
    ours = pair[1];
}

static void tcp_pair(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof to;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    theirs = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (void *)&to, len) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (void *)&to, &len) != 0 || connect(theirs, (void *)&to, len) != 0)
        exit(9);
    ours = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    close(listener);
}

static void write_text(const char *text) {
    ++*value;
    say("write", write(ours, text, strlen(text)));
}

// What the other end gets, up to its end; read by a child that PMAlloc does not serve.
static pid_t reader;
static void start_reader(void) {
    fflush(stdout);
    reader = (pid_t)syscall(SYS_fork);
    if (reader != 0) {
        close(theirs);
        return;
    }
    char got[256];
    long n, all = 0;
    for (int fd = STDERR_FILENO + 1; fd < 64; fd++)
        if (fd != theirs)
            syscall(SYS_close, fd);
    while ((n = syscall(SYS_read, theirs, got + all, sizeof got - (size_t)all)) > 0)
        all += n;
    memmove(got + 5, got, (size_t)all);
    memcpy(got, "got: ", 5);
    got[5 + all] = '\n';
    syscall(SYS_write, STDOUT_FILENO, got, 6 + all);
    syscall(SYS_exit_group, 0);
}
static void end_reader(void) {
    close(ours);
    waitpid(reader, NULL, 0);
}

struct way {
    const char *name;
    void (*run)(void);
};

// Of a program: WAY unix|tcp|pipe, or `check`.
static int run_way(int argc, char **argv, const struct way *ways, size_t count) {
    if (!value)
        value = calloc(1, sizeof *value);
    if (argc == 2 && strcmp(argv[1], "check") == 0) {
        printf("%lu\n", (unsigned long)*value);
        return 0;
    }
    if (argc != 3)
        return 2;
    (argv[2][0] == 'u' ? unix_pair : argv[2][0] == 'p' ? pipe_pair : tcp_pair)();
    for (size_t i = 0; i < count; i++)
        if (strcmp(ways[i].name, argv[1]) == 0) {
            ways[i].run();
            return 0;
        }
    return 2;
}

#endif
