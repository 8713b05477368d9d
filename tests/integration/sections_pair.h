// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the main thread of sections_foreign.c and of sections_absl.cc says.
#ifndef SECTIONS_PAIR_H
#define SECTIONS_PAIR_H

#include <stdio.h>
#include <unistd.h>

// How an earlier run has left the pair of numbers.
static inline void say_pair(long a, long b) {
    if (a != b)
        fprintf(stderr, "torn: %ld and %ld\n", a, b);
    else
        fprintf(stderr, a ? "whole\n" : "nothing was changed\n");
}

// An answer, and a short sleep, until somebody kills it. Returns the status if it cannot.
static inline int answer_for_ever(void) {
    for (long n = 1;; n++) {
        char text[32];
        int len = snprintf(text, sizeof text, "%ld\n", n);
        if (write(1, text, (size_t)len) != len)
            return 1;
        usleep(200);
    }
}

#endif
