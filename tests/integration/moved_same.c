// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program of which each build (-DBEFORE=N) takes as many pages, and has its function elsewhere.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

typedef int call_fn(int);
call_fn **kept;

#define FILL(n) __asm__(".text\n.fill " #n ", 1, 0xcc\n")
#define FILL_MORE(n) FILL(n)
FILL_MORE(BEFORE);

__attribute__((noinline)) int wanted(int x) { return x + 1000; }

int main(void) {
    if (!kept) {
        kept = malloc(sizeof *kept);
        *kept = wanted;
    }
    printf("%s %d\n", *kept == wanted ? "right" : "wrong", *kept == wanted ? (*kept)(1) : 0);
    fflush(stdout);
    return raise(SIGKILL);
}
