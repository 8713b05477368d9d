// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// One process, many heaps: the library's variables and tables go back to what they were at the start.
#ifndef PMALLOC_TESTS_FUZZ_RESET_H
#define PMALLOC_TESTS_FUZZ_RESET_H

void reset_init(void); // remembers; before the library is used for the first time
void reset(void);      // closes and unmaps what is open, then restores

#endif
