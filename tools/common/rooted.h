// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Whether the next run finds anything of a heap again.
#ifndef PM_TOOLS_ROOTED_H
#define PM_TOOLS_ROOTED_H

#include <stdbool.h>

// Whether the heap of this name, as PMALLOC_HEAP takes it, is missing or has no root. It may be in
// use. False also if it cannot be looked at: opening it will say why.
bool rooted_is_not(const char *heap);

#endif
