// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Takes all keys for thread-specific data, uses them in several threads, and gives them back.
// Prints what it finds, which is the same with each malloc.
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

#define MOST (PTHREAD_KEYS_MAX + 1)
#define THREADS 4
#define BLOCKS 3000

char **root;
static unsigned keys[MOST], count;
static _Thread_local unsigned ended;
static unsigned ended_in[THREADS];

static void end(void *value) {
    free(value);
    ended++;
}

static void take_all(int by_tss) {
    for (count = 0; count < MOST; count++)
        if (by_tss ? tss_create(&keys[count], end) != thrd_success
                   : pthread_key_create(&keys[count], end) != 0)
            break;
    printf("%u keys of %u\n", count, PTHREAD_KEYS_MAX);
}

// Allocates and frees, whether the thread has a cache or not.
static unsigned work(char with) {
    static _Thread_local char *block[BLOCKS];
    unsigned wrong = 0;
    for (int round = 0; round < 4; round++) {
        for (unsigned i = 0; i < BLOCKS; i++)
            block[i] = memset(malloc(16 + i % 200), with, 16 + i % 200);
        for (unsigned i = 0; i < BLOCKS; i++) {
            for (unsigned at = 0; at < 16 + i % 200; at++)
                wrong += block[i][at] != with;
            free(block[i]);
        }
    }
    return wrong;
}

static void set_all(char with) {
    for (unsigned i = 0; i < count; i++)
        if (pthread_getspecific(keys[i]) ||
            pthread_setspecific(keys[i], memset(malloc(32), with, 32)))
            printf("key %u\n", i);
    for (unsigned i = 0; i < count; i++) {
        const char *value = pthread_getspecific(keys[i]);
        if (!value || value[0] != with || value[31] != with)
            printf("value %u\n", i);
    }
}

// The last destructor of the thread counts them all.
static void *run(void *number) {
    unsigned n = (unsigned)(size_t)number;
    if (work((char)('a' + n)))
        puts("blocks of a thread are wrong");
    set_all((char)('A' + n));
    for (unsigned i = 0; i < count; i++) {
        end(pthread_getspecific(keys[i]));
        pthread_setspecific(keys[i], NULL);
    }
    ended_in[n] = ended;
    set_all((char)('K' + n));
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, run, (void *)i);
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        printf("ended %u\n", ended_in[i] == count);
    }
}

static void give_back(void) {
    for (unsigned i = 0; i < count; i++) {
        free(pthread_getspecific(keys[i]));
        if (pthread_key_delete(keys[i]) != 0)
            printf("delete %u\n", i);
    }
    count = 0;
}

int main(void) {
    unsigned wrong = work('m');
    int unmade = pthread_setspecific(0, &wrong); // a key that nobody has made
    root = calloc(THREADS, sizeof *root);
    for (int round = 0; round < 4; round++) {
        take_all(round % 2);
        threads();
        set_all('M');
        wrong += work('m');
        give_back();
        threads();
        root[round] = strdup("kept");
    }
    printf("wrong %u, %d\n", wrong, unmade);
    return 0;
}
