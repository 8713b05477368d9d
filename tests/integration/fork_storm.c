// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Several threads fork at once, while other threads start, allocate and end. Each child finds the
// list as it was, adds to it, and takes it apart. The parent's list stays.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKERS = 3, FORKS = 100, LENGTH = 10000, MORE = 100 };

struct item {
    struct item *next;
    long number;
    char rest[100];
};

static struct item *volatile items;
static _Atomic int wrong;
static _Atomic int forking = FORKERS;

static void push(long number) {
    struct item *item = malloc(sizeof *item);
    item->number = number;
    item->next = items;
    items = item;
}

static int child(void) {
    long length = 0, sum = 0;
    for (long i = 0; i < MORE; i++)
        push(LENGTH + i);
    while (items) {
        struct item *item = items;
        items = item->next;
        length++;
        sum += item->number;
        free(item);
    }
    return length == LENGTH + MORE && sum == length * (length - 1) / 2 ? 0 : 1;
}

static void *forker(void *arg) {
    for (int i = 0; i < FORKS; i++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0)
            _exit(child());
        if (waitpid(pid, &status, 0) != pid || status != 0) {
            printf("child %d of this thread ended with wait status %#x\n", i, (unsigned)status);
            wrong++;
        }
    }
    forking--;
    return arg;
}

static void *brief(void *arg) {
    for (size_t i = 1; i < 5; i++)
        free(memset(malloc(i * 97), 7, i));
    return arg;
}

int main(void) {
    pthread_t thread[FORKERS], other[FORKERS];
    for (long i = 0; i < LENGTH; i++)
        push(i);
    for (int i = 0; i < FORKERS; i++)
        if (pthread_create(&thread[i], NULL, forker, NULL) != 0)
            return 2;
    while (forking) {
        for (int i = 0; i < FORKERS; i++)
            if (pthread_create(&other[i], NULL, brief, NULL) != 0)
                return 3;
        for (int i = 0; i < FORKERS; i++)
            pthread_join(other[i], NULL);
    }
    for (int i = 0; i < FORKERS; i++)
        pthread_join(thread[i], NULL);
    long length = 0;
    for (struct item *item = items; item; item = item->next)
        wrong += item->number != LENGTH - ++length;
    printf("%ld items, %d wrong\n", length, wrong);
    return wrong != 0;
}
