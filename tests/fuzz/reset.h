// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// One process opens many heaps. Before each, the library's variables and tables become what they
// were at the start.
#ifndef PMALLOC_TESTS_FUZZ_RESET_H
#define PMALLOC_TESTS_FUZZ_RESET_H

void reset_init(void); // remembers the variables; call it before the library is used
void reset(void);      // closes and unmaps the open heap, then restores the variables

#endif
