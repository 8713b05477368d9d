// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// fork() while other threads read streams, and so allocate with a stream locked, and another one
// flushes all streams. `streams FORKS`; status 3: a child has found a wrong value.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READERS = 2 };

void *keep;

static atomic_bool over;
static char path[] = "/tmp/pmtest-streams-XXXXXX";
static char text[40000]; // one line, the file's too

static void wrong(const char *what) {
    fprintf(stderr, "streams: wrong: %s\n", what);
    exit(3);
}

static void *reads(void *unused) {
    // Not the file: a child's fflush(NULL) moves the offset that it shares, from glibc 2.43 on.
    FILE *file = fmemopen(text, sizeof text, "r");
    (void)unused;
    if (!file)
        wrong("fmemopen");
    while (!over) {
        char *line = NULL;
        size_t size = 0;
        rewind(file);
        if (getline(&line, &size, file) != 40000 || line[39998] != 'x')
            wrong("getline");
        free(line);
        usleep(20); // a stream's lock is not fair
    }
    fclose(file);
    return NULL;
}

static void *flushes(void *unused) {
    (void)unused;
    while (!over) {
        fflush(NULL);
        usleep(20); // libc's lock is not fair
    }
    return NULL;
}

static void fork_once(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        FILE *file = fopen(path, "r");
        char *copy = malloc(sizeof text);
        if (!file || !copy || fread(copy, 1, sizeof text, file) != sizeof text ||
            copy[39998] != 'x')
            _exit(3);
        fclose(file);
        fflush(NULL);
        _exit(7);
    }
    if (waitpid(child, &status, 0) != child || status != 7 << 8)
        wrong("a child");
}

int main(int argc, char **argv) {
    pthread_t thread[READERS + 1];
    int fd = mkstemp(path), forks = argc > 1 ? atoi(argv[1]) : 100;
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\n';
    if (fd < 0 || write(fd, text, sizeof text) != (ssize_t)sizeof text)
        wrong("the file");
    keep = malloc(100);
    for (int i = 0; i <= READERS; i++)
        pthread_create(&thread[i], NULL, i < READERS ? reads : flushes, NULL);
    for (int i = 0; i < forks; i++)
        fork_once();
    over = true;
    for (int i = 0; i <= READERS; i++)
        pthread_join(thread[i], NULL);
    unlink(path);
    puts("right");
    return 0;
}
