// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The fallback arena: 64 MiB of volatile memory for requests that cannot reach the heap. They come
// while the heap is being opened (from pthread_create in the collector, for example), or in a
// signal handler that interrupted the allocator while it held a lock. A block of the fallback arena
// is known by its address.
//
// Lock: none. `used` in fallback.c is an atomic word, so handlers may call every function.
#ifndef PM_FALLBACK_H
#define PM_FALLBACK_H

#include <stdbool.h>
#include <stddef.h>

// Returns zeroed memory; NULL: the arena is used up.
void *pm_fallback_alloc(size_t size, size_t align);
// Makes the memory of a block free again if no other block was made after it. That is the usual
// case in a signal handler. Else the memory stays used for ever.
void pm_fallback_free(void *p);
bool pm_fallback_owns(const void *p);
// Returns the size that the block at `p` was asked for with.
size_t pm_fallback_size(const void *p);

#endif
