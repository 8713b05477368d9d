// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heaps that edits start from, made by the library itself when the fuzzer starts.
#ifndef PMALLOC_TESTS_FUZZ_SEEDS_H
#define PMALLOC_TESTS_FUZZ_SEEDS_H

#include <stddef.h>

#define FILES 7 // superblock heap.0 slabs.0 booklog.0 roots bitmaps.0 morph.0
#define SEEDS 6
extern const char *const file_names[FILES];

// Makes all of them below `directory`, one after the other.
void seeds_make(const char *directory);
// Writes one as the heap in `directory`, over whatever is there, and opens its files; -1: the heap has no such file.
void seed_write(unsigned seed, const char *directory, int fd[FILES]);

#endif
