// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The names of default heaps: DEFAULTS_IN/pmalloc-UID/PROGRAM, or PROGRAM.2 and so on. A default
// heap has one from the start if a setting asks for what is to be kept. Else it gets its name with
// its first root, or when the program asks for the name (heap_make.h: a heap without names).
#ifndef PM_CHOOSE_NAME_H
#define PM_CHOOSE_NAME_H

#include <stdbool.h>
#include <stddef.h>

#include "base/message.h"

#define DEFAULTS_IN "/dev/shm"
#define DEFAULT_HEAPS 10000

// The name of the running program.
int pm_choose_program(char *name, size_t size, struct pm_error *err);
// The default heap of that program. NULL: the directory of this user's default heaps.
void pm_choose_path(char *dir, size_t size, const char *name);
// Fills `dir` with that directory, and opens it. If it is missing, it is made, or without `make`
// *fd is -1.
int pm_choose_parent(char *dir, size_t size, bool make, int *fd, struct pm_error *err);
// Gives the open heap its name, if it has none. False, with errno and a message that begins with
// `call`: that has failed, and the heap is as before. Thread-safe. In a signal handler that
// interrupts the allocator it fails with EDEADLK, without a message.
bool pm_choose_name(const char *call);

#endif
