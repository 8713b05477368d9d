// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Opens a heap without its program, for tools and tests. The calls come from one thread, in this
// order. A process opens one heap, once. Only the end of the process closes it.
//
//   pm_options_default, pm_offline_open, [pm_roots_drop,] pm_recover, [pm_close]
#ifndef PM_OFFLINE_H
#define PM_OFFLINE_H

#include <stdbool.h>

#include "media/heap.h"

// Opens and maps the heap. `mode` is PM_OPEN_EXISTING, PM_OPEN_READONLY or PM_OPEN_HALTED. After a
// failure the heap is not locked and not mapped.
int pm_offline_open(const char *dir, enum pm_open_mode mode, struct pm_error *err);

#endif
