// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Copies pages at the instant, so that they can be looked at afterwards, while the program runs: a
// copy takes about a microsecond a page, a look several.
//
// With the commit lock. While a copy is made, no other thread stores to its page.
#ifndef PM_INSTANT_COPY_H
#define PM_INSTANT_COPY_H

#include <stddef.h>
#include <stdint.h>

// There is room for so many pages.
void pm_instant_copy_begin(char *to, uint64_t pages);
// The pages come behind those before them. Called by pm_stored_part().
void pm_instant_copy(char *at, size_t len, void *unused);
// How many pages from the first on were copied: up to the end of the room, or to one that cannot be
// read.
uint64_t pm_instant_copy_end(void);

#endif
