// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --follow: looks at a heap in use again and again, until its process ends.
#ifndef PM_TOOLS_FOLLOW_H
#define PM_TOOLS_FOLLOW_H

#include <stdbool.h>

// Looks every `interval` seconds, at most `count` times; 0: no limit. SIGINT ends it too. On a
// terminal each look replaces the one before. Elsewhere it is a line, or with `json` an object.
// Returns the exit status.
int follow(const char *heap, double interval, unsigned long count, bool json);

#endif
