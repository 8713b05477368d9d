// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Checks of one image, each in a process of its own. Exit status 0, or not with a reason in `text` or on standard
// error.
#ifndef PMALLOC_TESTS_CRASH_VERIFY_H
#define PMALLOC_TESTS_CRASH_VERIFY_H

#include <stddef.h>

#include "object.h"

// Opens and recovers as a program does that starts, compares with what the simulated program knows, then lets
// the heap work; closes it where it is to be opened again.
int verify_image(char *text, size_t len);
// The heap that verify_image closed.
int verify_again(char *text, size_t len);
// As pmalloc-recover --check: finds the same and changes nothing.
int verify_look(char *text, size_t len);

#endif
