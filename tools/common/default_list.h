// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PM_TOOLS_DEFAULT_LIST_H
#define PM_TOOLS_DEFAULT_LIST_H

#include <stdbool.h>

#include "defaults.h"

// Prints the default heaps, after removing those that `purge` says: if the user wants that, who has
// said `yes` or is asked. Returns the exit status.
int default_list(enum default_purge purge, bool yes, bool json);

#endif
