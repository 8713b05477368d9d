// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The allocator's tables for the whole range: reserved once in a process, before anything else, and
// never given back.
#ifndef PM_TABLES_H
#define PM_TABLES_H

#include <stdbool.h>

#include "base/message.h"

// Also chooses the range that there is room for. False: no address space for any.
bool pm_tables_reserve(unsigned arenas, unsigned directories);
// After pm_heap_open(): more range and tables where the heap has more shards or directories, or a
// higher limit, than the options and its name ask for. Nothing may be in the tables yet.
// PM_OPERATIONAL: no address space for the shards that there are.
int pm_tables_extend(struct pm_error *err);

#endif
