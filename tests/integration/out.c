// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program whose live blocks hold words that lead out of its heap, for test_out.py.
//
//   out MODE KIND FILE    MODE: kill, end, or wait, which ends when its input does
//                         KIND: what three words lead to: stack, tls, thread, file, anonymous,
//                         code, root (one word, in the root itself), lost (from blocks that no root
//                         reaches), or heap
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LENGTH 65536

struct order {
    struct order *next;
    long number;
    char *index;
};
struct shop {
    char name[24];
    struct order *orders;
};
struct {
    struct shop *shop;
    char *note;
} root;

static __thread char in_thread[64];
static pthread_mutex_t ready = PTHREAD_MUTEX_INITIALIZER;
static char *volatile in_other;

static void *other(void *unused) {
    char here[64] = "";
    in_other = here;
    pthread_mutex_unlock(&ready);
    for (;;)
        pause();
    return unused;
}

static char *of_thread(void) {
    pthread_t thread;
    pthread_mutex_lock(&ready);
    if (pthread_create(&thread, NULL, other, NULL) != 0)
        exit(2);
    pthread_mutex_lock(&ready);
    return in_other;
}

static char *mapped(const char *file) {
    int fd = *file ? open(file, O_RDWR | O_CREAT, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, LENGTH) != 0)
        exit(2);
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    char *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED)
        exit(2);
    return at;
}

static char *target(const char *kind, const char *file, char *stack) {
    return strcmp(kind, "stack") == 0       ? stack
           : strcmp(kind, "tls") == 0       ? in_thread
           : strcmp(kind, "thread") == 0    ? of_thread()
           : strcmp(kind, "file") == 0      ? mapped(file)
           : strcmp(kind, "anonymous") == 0 ? mapped("")
           : strcmp(kind, "code") == 0      ? (char *)(void *)strlen
           : strcmp(kind, "heap") == 0      ? malloc(100)
                                            : mapped("");
}

static void make(const char *kind, char *to) {
    if (strcmp(kind, "lost") == 0)
        to = NULL;
    root.shop = calloc(1, sizeof *root.shop);
    strcpy(root.shop->name, "shop");
    for (long i = 0; i < 3; i++) {
        struct order *order = calloc(1, sizeof *order);
        *order = (struct order){root.shop->orders, i, to && strcmp(kind, "root") ? to + i : NULL};
        root.shop->orders = order;
    }
}

int main(int argc, char **argv) {
    char stack[64] = "";
    if (argc != 4)
        return 2;
    if (root.shop) { // the run that finds them
        printf("%ld\n", root.shop->orders->number);
        return 0;
    }
    char *to = target(argv[2], argv[3], stack);
    make(argv[2], to);
    if (strcmp(argv[2], "root") == 0)
        root.note = to;
    if (strcmp(argv[2], "lost") == 0)
        ((struct order *)calloc(1, sizeof(struct order)))->index = to;
    if (strcmp(argv[1], "kill") == 0)
        raise(SIGKILL);
    if (strcmp(argv[1], "wait") == 0) {
        puts("ready");
        fflush(stdout);
        getchar();
    }
    return 0;
}
