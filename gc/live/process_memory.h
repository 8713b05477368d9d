// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where the roots of a living process are: all memory outside the heap that it can store to.
//
//   stacks                from each thread's stack pointer up: what lies below is no more. glibc
//                         and musl put a thread's static thread-local storage, and what libc knows
//                         of it, at the top of its stack
//   data of all objects   private mappings of files, the pages that were stored to
//   anonymous memory      all of it: a program may keep anything there, and so do the dynamic
//                         linker and libraries that map memory themselves
//   shared memory         the pages that this process has touched; captured roots whole
//
// Left out: the heap's range, in which only what is reached is scanned; PMAlloc's own memory
// (base/own_memory.h); devices. Pages that were never stored to are not read.
#ifndef PM_PROCESS_MEMORY_H
#define PM_PROCESS_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

typedef void pm_memory_fn(const void *at, size_t len, void *arg);

// Calls `each` for all of it. `stacks`: the stack pointers of all threads. A stack pointer in
// the heap is the caller's concern. The threads are held.
int pm_process_memory(const uintptr_t *stacks, unsigned count, pm_memory_fn *each, void *arg,
                      struct pm_error *err);

#endif
