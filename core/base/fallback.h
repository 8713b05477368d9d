// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The fallback arena: volatile memory for requests that cannot reach the heap. They come before the
// heap is opened, while it is being opened (from pthread_create in the collector, for example), or
// in a signal handler that interrupted the allocator while it held a lock. A block of the fallback
// arena is known by its address. It has two parts; few processes need the second.
//
// Lock: none. `used` in fallback.c is an atomic word, so handlers may call every function.
#ifndef PM_FALLBACK_H
#define PM_FALLBACK_H

#include <stdbool.h>
#include <stddef.h>

#define PM_FALLBACK_SMALL ((size_t)128 << 10)
#define PM_FALLBACK_LARGE ((size_t)64 << 20)

// Returns zeroed memory; NULL: the arena is used up.
void *pm_fallback_alloc(size_t size, size_t align);
// Whether the small part has room for `bytes` bytes.
bool pm_fallback_has_room(size_t bytes);
// The same of the large part.
bool pm_fallback_has_large_room(size_t bytes);
// Makes the memory of a block free again if no other block was made after it. That is the usual
// case in a signal handler. Else the memory stays used for ever.
void pm_fallback_free(void *p);
bool pm_fallback_owns(const void *p);
// Whether an address that the arena owns is the start of a block that is handed out.
bool pm_fallback_is_block(const void *p);
// Returns the size that the block at `p` was asked for with.
size_t pm_fallback_size(const void *p);

#endif
