// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --diff: what differs between two heaps, such as a heap and its backup of yesterday.
#ifndef PM_TOOLS_DIFF_H
#define PM_TOOLS_DIFF_H

#include <stdbool.h>

// Looks at both heaps, one after the other, and prints what has grown and shrunk from `before` to
// `after`. Returns the exit status.
int diff(const char *before, const char *after, bool json);

#endif
