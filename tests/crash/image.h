// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Points at which the power may fail, and the images that are taken there and sent to the checker.
#ifndef PMALLOC_TESTS_CRASH_IMAGE_H
#define PMALLOC_TESTS_CRASH_IMAGE_H

#include "world.h"

#define PHASE_FAILED 77 // exit status of a process that ended by power failure or by a kill

void image_point(enum site_kind kind, uint64_t pc);
bool image_mutated(enum mutation mutation, uint64_t pc);

// Connects to the checker, which is at the other end of `fd`.
void image_connect(int fd);
void image_disconnect(void);

#endif
