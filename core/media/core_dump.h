// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What core dumps leave out.
#ifndef PM_CORE_DUMP_H
#define PM_CORE_DUMP_H

#include <stdint.h>

#include "shard.h"

// Some core dumps have file mappings (bit 3 of /proc/PID/coredump_filter, or a file without a
// name), and the kernel then looks at every page of them. gdb's gcore writes out anonymous memory
// that was never touched, too. This leaves metadata out of core dumps, and data from a little after
// the frontier on. Called after each mapping of the data.
void pm_heap_dump_used(void);
// The same for one shard.
void pm_shard_dump_used(struct pm_shard *s);
// The first `used` bytes of the data are in use now.
void pm_shard_dump_up_to(struct pm_shard *s, uint64_t used);

#endif
