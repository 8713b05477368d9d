// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The checks of one image, each in a process of its own. They return 0, or end the process with
// another status and a reason in `text` or on standard error.
#ifndef PMALLOC_TESTS_CRASH_VERIFY_H
#define PMALLOC_TESTS_CRASH_VERIFY_H

#include <stddef.h>

#include "object.h"

// Opens and recovers the heap as a program does when it starts. Compares it with what the simulated
// program knows. Then allocates and frees at random. Closes the heap where verify_again() follows.
int verify_image(char *text, size_t len);
// Opens and compares the heap that verify_image() closed.
int verify_again(char *text, size_t len);
// Opens the image as pmalloc-recover --check does, which changes nothing.
int verify_look(char *text, size_t len);

#endif
