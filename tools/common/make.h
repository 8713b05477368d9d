// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-recover --make: a heap on a fixed medium.
#ifndef PM_TOOLS_MAKE_H
#define PM_TOOLS_MAKE_H

#include <stdbool.h>
#include <stdint.h>

// Makes it and reports. Returns the exit status.
int make_heap(const char *path, uint64_t size, bool force, bool json);

#endif
