// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads whose stacks lie in one mapping, as glibc 2.42 has them: [other memory, guard, stack] for
// each. What only the unused part of a stack points to is no longer reached; what other memory
// points to is. libgc's functions are looked up, so the program needs no headers.
//
//     boehm_stacks    prints for each thread: kept by the memory below, kept by the unused part
//
// Status 77: the kernel has no guard pages.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define THREADS 3
#define PAGE 4096u
#define STACK (64 * PAGE)
#define PART (STACK + 2 * PAGE)
#define GUARD_INSTALL 102

static void *(*take)(size_t), *(*take_atomic)(size_t);
static int (*link_to)(void **, const void *);
static void (*collect)(void);
static int ends[2], ready[2];

static void must(int good) {
    if (!good)
        abort();
}

static void *wait_here(void *arg) {
    char byte = 0;
    must(write(ready[1], &byte, 1) == 1);
    must(read(ends[0], &byte, 1) == 0); // until the end
    return arg;
}

// A block that only `place` points to. What is returned becomes NULL when it is collected.
static __attribute__((noinline)) void **only_from(void **place) {
    void **link = take_atomic(sizeof *link);
    *place = take(64);
    *link = *place;
    must(link_to(link, *place) == 0);
    return link;
}

static void look_up(const char *name, void *function) {
    *(void **)function = dlsym(RTLD_DEFAULT, name);
    must(*(void **)function != NULL);
}

int main(void) {
    static void **below[THREADS], **unused[THREADS];
    look_up("GC_malloc", &take);
    look_up("GC_malloc_atomic", &take_atomic);
    look_up("GC_general_register_disappearing_link", &link_to);
    look_up("GC_gcollect", &collect);
    must(pipe(ends) == 0 && pipe(ready) == 0);
    char *memory =
        mmap(NULL, THREADS * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    for (int i = 0; i < THREADS; i++) {
        char *part = memory + i * PART, byte;
        if (madvise(part + PAGE, PAGE, GUARD_INSTALL) != 0)
            return 77;
        below[i] = only_from((void **)part);
        unused[i] = only_from((void **)(part + 2 * PAGE));
        pthread_attr_t attr;
        pthread_t thread;
        must(pthread_attr_init(&attr) == 0);
        must(pthread_attr_setstack(&attr, part + 2 * PAGE, STACK) == 0);
        must(pthread_create(&thread, &attr, wait_here, NULL) == 0);
        must(read(ready[0], &byte, 1) == 1);
    }
    for (int i = 0; i < 3; i++)
        collect();
    for (int i = 0; i < THREADS; i++)
        printf("%d %d\n", *below[i] != NULL, *unused[i] != NULL);
    return 0;
}
