// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Blocks with words that lead out of the heap, for test_transient.py. A second run prints what has
// become of each word: kept, NULL, or else.
//
//   transient MODE FILE     MODE: kill, end, commit (which commits and is killed)
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "preload/pmalloc.h"

#define LENGTH 65536
#define LARGE ((size_t)4 << 20)
#define ORDERS 6000 // 1.5 MiB of small blocks

enum { STACK, TLS, THREAD, FILES, ANONYMOUS, CODE, LOADED, VARIABLE, HEAP, NUMBER, TAGGED, WORDS };
static const char *const name[WORDS] = {"stack",     "tls",    "thread", "file",
                                        "anonymous", "code",   "loaded", "variable",
                                        "heap",      "number", "tagged"};

struct order {
    struct order *next;
    uintptr_t word[WORDS];
    char more[160];
};
struct shop {
    struct order *orders;
    uintptr_t *large;        // LARGE bytes
    uintptr_t *pointer_free; // WORDS words
    uintptr_t unlike[WORDS]; // the words, inverted
};
struct {
    struct shop *shop;
    uintptr_t word[WORDS];
} root;

static __thread char in_thread[64];
static char variable[64];
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
    int fd = file ? open(file, O_RDWR | O_CREAT, 0600) : -1;
    if (file && (fd < 0 || ftruncate(fd, LENGTH) != 0))
        exit(2);
    int flags = file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    char *at = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED)
        exit(2);
    return at;
}

// A function of a library that has come to a place where memory was mapped before.
static void *loaded(void) {
    size_t length = (size_t)256 << 20;
    char *at = mmap(NULL, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *library =
        at == MAP_FAILED || munmap(at, length) != 0 ? NULL : dlopen("libm.so.6", RTLD_NOW);
    char *function = library ? dlsym(library, "cos") : NULL;
    if (function < at || function >= at + length)
        exit(4);
    return function;
}

static void *pointer_free(size_t size) {
    void *(*alloc)(size_t, size_t, unsigned) =
        (void *(*)(size_t, size_t, unsigned))dlsym(RTLD_DEFAULT, "pmalloc_alloc");
    void *p = alloc ? alloc(size, 0, PMALLOC_POINTER_FREE) : NULL;
    if (!p)
        exit(2);
    return p;
}

static void make(const char *file, char *stack) {
    struct shop *s = calloc(1, sizeof *s);
    uintptr_t word[WORDS] = {
        [STACK] = (uintptr_t)stack,
        [TLS] = (uintptr_t)in_thread,
        [THREAD] = (uintptr_t)of_thread(),
        [FILES] = (uintptr_t)mapped(file),
        [ANONYMOUS] = (uintptr_t)mapped(NULL),
        [CODE] = (uintptr_t)strlen,
        [LOADED] = (uintptr_t)loaded(),
        [VARIABLE] = (uintptr_t)variable,
        [HEAP] = (uintptr_t)malloc(100),
        [NUMBER] = 0x123456789,
        [TAGGED] = (uintptr_t)stack | (uintptr_t)1 << 56,
    };
    s->large = calloc(1, LARGE);
    s->pointer_free = pointer_free(sizeof word);
    memcpy(s->large + LARGE / 2 / sizeof *s->large, word, sizeof word);
    memcpy(s->pointer_free, word, sizeof word);
    memcpy(root.word, word, sizeof word);
    for (unsigned i = 0; i < WORDS; i++)
        s->unlike[i] = ~word[i];
    for (unsigned i = 0; i < ORDERS; i++) {
        struct order *o = calloc(1, sizeof *o);
        o->next = s->orders;
        memcpy(o->word, word, sizeof word);
        s->orders = o;
    }
    root.shop = s;
}

static const char *became(uintptr_t word, uintptr_t unlike) {
    return word == ~unlike ? "kept" : word ? "wrong" : "NULL";
}

static void say(const char *of, const uintptr_t *word) {
    printf("%s", of);
    for (unsigned i = 0; i < WORDS; i++)
        printf(" %s=%s", name[i], became(word[i], root.shop->unlike[i]));
    puts("");
}

static void look(void) {
    const struct shop *s = root.shop;
    unsigned orders = 0;
    for (const struct order *o = s->orders; o; o = o->next, orders++)
        for (unsigned i = 0; i < WORDS; i++)
            if (o->word[i] != s->orders->word[i])
                printf("order %u differs: %s\n", orders, name[i]);
    printf("orders=%u\n", orders);
    say("small", s->orders->word);
    say("large", s->large + LARGE / 2 / sizeof *s->large);
    say("pointer_free", s->pointer_free);
    say("root", root.word);
    fflush(stdout);
}

int main(int argc, char **argv) {
    char stack[64] = "";
    if (argc != 3)
        return 2;
    if (root.shop)
        look();
    else
        make(argv[2], stack);
    if (strcmp(argv[1], "commit") == 0 &&
        ((int (*)(void))dlsym(RTLD_DEFAULT, "pmalloc_commit"))() != 0)
        return 3;
    if (strcmp(argv[1], "end") != 0)
        raise(SIGKILL);
    return 0;
}
