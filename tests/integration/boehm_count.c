// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Preloaded into a program that uses libgc: when the program ends, the file COLLECTIONS says how
// many collections there were.
#include <stdio.h>
#include <stdlib.h>

unsigned long GC_get_gc_no(void) __attribute__((weak));

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("COLLECTIONS");
    FILE *file = path && GC_get_gc_no ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%lu\n", GC_get_gc_no());
        fclose(file);
    }
}
