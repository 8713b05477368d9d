// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Allocations before anything else runs: in preinit_array, an IFUNC resolver and the first
// constructor. Allocations after everything else: in a destructor and an atexit handler. Built as a
// library (-DLIBRARY) and as a program.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void need(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "wrong: %s\n", what);
        _exit(1);
    }
}

static char *use(char *old) {
    char *p = calloc(1, 100);
    need(p && !p[0] && !p[99], "calloc");
    p = realloc(p, 200000);
    need(p != NULL && !p[50], "realloc");
    memset(p, 0x42, 200000);
    char *q = malloc(3 << 20);
    need(q != NULL, "malloc");
    free(q);
    if (old) {
        need(old[0] == 0x42 && old[199999] == 0x42, "a block from before");
        free(old);
    }
    return p;
}

#ifdef LIBRARY

static char *kept;
__attribute__((constructor(101))) static void first(void) { kept = use(NULL); }
__attribute__((destructor(101))) static void last(void) { kept = use(kept); }
char *early_library(void) { return kept = use(kept); }

#else

char *early_library(void);
static char *before, *at_resolve;

static void preinit(int argc, char **argv, char **env) {
    (void)argc, (void)argv, (void)env;
    before = use(NULL);
}
__attribute__((section(".preinit_array"), used)) static void (*entry)(int, char **,
                                                                      char **) = preinit;

static int implementation(void) { return 7; }
__attribute__((used)) static int (*resolver(void))(void) { return implementation; }
int by_ifunc(void) __attribute__((ifunc("resolver")));

__attribute__((constructor(101))) static void first(void) { at_resolve = use(before); }
__attribute__((destructor(101))) static void last(void) { use(at_resolve); }
static void at_exit(void) { at_resolve = use(at_resolve); }

int main(void) {
    need(by_ifunc() == 7, "ifunc");
    at_resolve = use(at_resolve);
    need(early_library() != NULL, "library");
    atexit(at_exit);
    puts("fine");
    return 0;
}

#endif
