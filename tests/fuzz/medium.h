// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The edited heap on a fixed medium. If the input's last byte is 0xe0 to 0xe7, so many edits of the
// layout and of the lengths are read from its end.
#ifndef PMALLOC_TESTS_FUZZ_MEDIUM_H
#define PMALLOC_TESTS_FUZZ_MEDIUM_H

#include "edits.h"

// Takes these edits off the input.
struct input medium_edits(struct input *in);
// Lays the files of the heap, of which `fd` are open, into the file at `path`.
void medium_lay(const char *path, const int fd[FILES], struct input *edits);

#endif
