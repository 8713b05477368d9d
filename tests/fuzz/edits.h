// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// An input is the number of a seed and a list of edits. Plain edits change bytes, and a checksum
// notices most of them. The other edits change a field and correct its checksums, so that they
// reach the checks after these.
#ifndef PMALLOC_TESTS_FUZZ_EDITS_H
#define PMALLOC_TESTS_FUZZ_EDITS_H

#include <stddef.h>
#include <stdint.h>

#include "seeds.h"

struct input {
    const uint8_t *at, *end; // reads as zeroes after `end`
};
uint64_t take(struct input *in, unsigned bytes);

// Applies the rest of the input to the heap's files.
void edits_apply(struct input *in, const char *directory, const int fd[FILES]);

#endif
