// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Figures as people read them. Each function writes to `out` and returns it.
#ifndef PM_TOOLS_FIGURES_H
#define PM_TOOLS_FIGURES_H

#include <stdint.h>

// "17 B", "1.4 MiB"
const char *figure_bytes(uint64_t bytes, char out[32]);
// "1,234,567"
const char *figure_count(uint64_t count, char out[32]);

#endif
