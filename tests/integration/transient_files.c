// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Words that lead into more files than are on record, which lie among stacks of threads, for
// test_transient.py. The first run is killed; a second one prints what has become of them.
//
//   transient_files FILE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILES 14
#define LENGTH (8 << 20) // fits into no gap between libraries

struct {
    char *file[FILES], *stack[2];
} * root;

static sem_t ready;

static void *thread(void *word) {
    char here[64] = "";
    if (word)
        *(char **)word = here;
    sem_post(&ready);
    for (;;)
        pause();
    return NULL;
}

static void start(char **word) {
    pthread_t id;
    if (pthread_create(&id, NULL, thread, word) != 0)
        exit(2);
    sem_wait(&ready);
}

static unsigned kept(char *const *word, unsigned count) {
    unsigned n = 0;
    for (unsigned i = 0; i < count; i++)
        n += word[i] != NULL;
    return n;
}

int main(int argc, char **argv) {
    int fd = argc == 2 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    if (fd < 0 || ftruncate(fd, LENGTH) != 0)
        return 2;
    if (root) {
        printf("files=%u stacks=%u\n", kept(root->file, FILES), kept(root->stack, 2));
        return 0;
    }
    root = calloc(1, sizeof *root);
    sem_init(&ready, 0, 0);
    start(&root->stack[0]);
    for (unsigned i = 0; i < FILES; i++) {
        root->file[i] = mmap(NULL, LENGTH, PROT_READ, MAP_SHARED, fd, 0);
        if (root->file[i] == MAP_FAILED)
            return 2;
    }
    start(&root->stack[1]);
    raise(SIGKILL);
}
