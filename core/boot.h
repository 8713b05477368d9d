// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The bootstrap arena: bounded volatile memory for requests that come while the heap is being opened (from
// pthread_create in the collector, say), after it was closed (from other libraries' destructors), or in a signal
// handler that interrupted the allocator where it holds a lock. Recognised by address.
#ifndef PM_BOOT_H
#define PM_BOOT_H

#include <stdbool.h>
#include <stddef.h>

// Zeroed memory, or NULL when the arena is used up. Thread-safe, lock-free.
void *pm_boot_alloc(size_t size, size_t align);
// Gives the block back when it is the last one, as those of signal handlers mostly are; else it stays for ever.
void pm_boot_free(void *p);
bool pm_boot_owns(const void *p);
// Bytes that were asked for at `p`.
size_t pm_boot_size(const void *p);

#endif
