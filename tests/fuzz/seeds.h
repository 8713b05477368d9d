// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heaps that edits start from. The library makes them when the fuzzer starts.
#ifndef PMALLOC_TESTS_FUZZ_SEEDS_H
#define PMALLOC_TESTS_FUZZ_SEEDS_H

#include <stddef.h>

#include "media/heap_files.h"

#define FILES PM_ROW_new_data // the rows of the table of files that last
#define PLAIN_SEEDS 6
#define SEEDS 8 // the others have blocks of other kinds

// Makes all of them in `directory`, one after the other.
void seeds_make(const char *directory);
// Writes one seed into `directory`, over what is there, and opens its files. -1 for a file that it
// does not have.
void seed_write(unsigned seed, const char *directory, int fd[FILES]);

#endif
