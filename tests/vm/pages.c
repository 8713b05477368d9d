// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// How large the pages are that the kernel maps: touches a large block, and prints its size and the
// faults that the kernel has counted meanwhile. One fault maps 2 MiB, or 4 KiB.
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#define BYTES ((size_t)64 << 20)

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

int main(void) {
    volatile char *block = malloc(BYTES);
    if (!block)
        return 1;
    long before = faults();
    for (size_t at = 0; at < BYTES; at += 4096)
        block[at] = 1;
    printf("pages %zu %ld\n", BYTES, faults() - before);
    return 0;
}
