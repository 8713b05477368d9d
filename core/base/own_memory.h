// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Memory of PMAlloc's own that outlives its use: tables, thread caches, buffers. Addresses that
// stand there are PMAlloc's notes, some of them old, and keep no block alive. So the live collector
// (gc/live) leaves this memory out when it looks for roots.
#ifndef PM_OWN_MEMORY_H
#define PM_OWN_MEMORY_H

#include <stddef.h>
#include <stdint.h>

// pm_os_reserve(), and on record. The memory is never unmapped.
void *pm_own_reserve(size_t bytes);
// How many elements a table may have that is reserved for `most`, more than there will ever be. It
// takes a 64th of a limited address space (RLIMIT_AS) at most: then there are a half, a quarter ...
size_t pm_own_room(size_t each, size_t most);
// Puts memory on record. Without room for it nothing happens: the live collector then takes what
// stands there for roots, and may find fewer leaks.
void pm_own_note(const void *at, size_t bytes);
// The same for the variables of this library. A program that PMAlloc is linked into, as unit tests
// are, has its own among them: then nothing happens.
void pm_own_note_library(void);

// The end of the record that begins at or around `at`, and covers it; 0: none does. `next`: where
// the first record after `at` begins, UINTPTR_MAX: there is none.
uintptr_t pm_own_end(uintptr_t at, uintptr_t *next);

#endif
