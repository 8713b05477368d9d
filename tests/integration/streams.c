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

static void wrong(const char *what) {
    fprintf(stderr, "streams: wrong: %s\n", what);
    exit(3);
}

static void *reads(void *unused) {
    FILE *file = fopen(path, "r");
    (void)unused;
    if (!file)
        wrong("fopen");
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
        char *text = malloc(40000);
        if (!file || !text || fread(text, 1, 40000, file) != 40000 || text[39998] != 'x')
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
    static char line[40000];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    if (fd < 0 || write(fd, line, sizeof line) != (ssize_t)sizeof line)
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
