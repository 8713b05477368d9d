// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A module for other_library.c that counts in a critical section of OpenMP.
int whose(void);
int whose(void) {
    static int count;
#pragma omp parallel for
    for (int i = 0; i < 1000; i++) {
#pragma omp critical
        count++;
    }
    return count;
}
