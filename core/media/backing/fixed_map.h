// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Maps a piece of a fixed medium that is not a part of the heap: its head, or what a tool makes.
#ifndef PM_FIXED_MAP_H
#define PM_FIXED_MAP_H

#include <stddef.h>
#include <stdint.h>

// Shared, by the descriptor `fd`; at the address `at`, or NULL. MAP_FAILED, with errno.
void *pm_medium_map(int fd, void *at, size_t len, int prot, uint64_t offset);

#endif
