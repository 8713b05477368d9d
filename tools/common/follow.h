// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-info --follow: a look at a running heap every so often, until its process ends.
#ifndef PM_TOOLS_FOLLOW_H
#define PM_TOOLS_FOLLOW_H

#include <stdbool.h>

// On a terminal each look takes the place of the one before; elsewhere it is a line, or a JSON object. `count` 0:
// as often as there is something to see. Ends at SIGINT, too. The exit status.
int follow(const char *heap, double interval, unsigned long count, bool json);

#endif
