// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// An input is a seed and a list of edits to it. Plain edits change bytes; most would end at the first checksum, so
// the others change a field and make its checks right again: they reach what lies behind.
#ifndef PMALLOC_TESTS_FUZZ_EDITS_H
#define PMALLOC_TESTS_FUZZ_EDITS_H

#include <stddef.h>
#include <stdint.h>

#include "seeds.h"

struct input {
    const uint8_t *at, *end; // reads as zeroes behind its end
};
uint64_t take(struct input *in, unsigned bytes);

// Applies the rest of the input to the heap's files.
void edits_apply(struct input *in, const char *directory, const int fd[FILES]);

#endif
