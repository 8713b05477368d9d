// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A list whose library adds to it in a destructor, after everything else. The program may also add
// to it, in a thread that asks for its first memory while the process ends. Built twice: as a
// library and as its program.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct node {
    struct node *next;
    long value;
};

#ifdef LIBRARY
struct node *late_list;

void late_push(void);
void late_push(void) {
    struct node *node = malloc(sizeof *node);
    node->next = late_list;
    node->value = 1;
    late_list = node;
}

// Parent and child take memory at once. The child must not write to the parent's.
static void late_fork(void) {
    enum { BLOCKS = 200, SIZE = 20000 };
    static char *block[BLOCKS];
    pid_t child = fork();
    for (int i = 0; i < BLOCKS; i++) {
        block[i] = malloc(SIZE + (size_t)i * 10);
        memset(block[i], child ? 'p' : 'c', SIZE);
        usleep(100);
    }
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    int wrong = 0;
    for (int i = 0; i < BLOCKS; i++)
        wrong += block[i][0] != 'p' || memcmp(block[i], block[i] + 1, SIZE - 1) != 0;
    char line[64];
    int len = snprintf(line, sizeof line, "%d blocks overwritten\n", wrong);
    if (write(STDOUT_FILENO, line, (size_t)len) != len)
        _exit(9);
}

__attribute__((destructor)) static void last_words(void) {
    late_push();
    if (getenv("LATE_FORK"))
        late_fork();
}
#else
extern struct node *late_list;
void late_push(void);

static void *idle(void *arg) {
    usleep((useconds_t)(size_t)arg);
    for (int i = 0; i < 50; i++)
        late_push();
    return NULL;
}

int main(int argc, char **argv) {
    int count = 0;
    for (struct node *node = late_list; node; node = node->next)
        count += node->value == 1;
    printf("%d\n", count);
    for (int i = 0; i < 100; i++)
        late_push();
    pthread_t thread;
    if (argc == 2 && pthread_create(&thread, NULL, idle, (void *)(size_t)atoi(argv[1])) == 0)
        pthread_detach(thread);
    return 0;
}
#endif
