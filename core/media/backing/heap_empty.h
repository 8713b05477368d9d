// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pages in use that the program wants to be zeroes (MADV_DONTNEED on a block of its own).
#ifndef PM_HEAP_EMPTY_H
#define PM_HEAP_EMPTY_H

#include <stdbool.h>
#include <stdint.h>

// Makes whole pages of one shard read as zeroes. They are in use, and stay so. `keep`: they keep
// their space, so that touching them cannot fail. Else it goes back, where the medium can do that,
// and the next store takes it anew. Called with the extent lock, or with `keep` where the lock
// cannot be had. Not for volatile memory, which the kernel serves.
void pm_heap_empty(uint64_t offset, uint64_t len, bool keep);

#endif
