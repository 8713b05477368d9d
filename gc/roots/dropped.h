// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Roots that were dropped and are kept, as PM_ROOT_DROPPED says. No program has them: their images
// go from table to table, so that what they reach stays alive until they are dropped once more.
#ifndef PM_ROOTS_DROPPED_H
#define PM_ROOTS_DROPPED_H

#include <stddef.h>

#include "base/message.h"
#include "media/format.h"

// Gives every root whose text is `name` a name as PM_ROOT_DROPPED says, and writes it to `kept`.
// The blocks that the root reaches stay alive. The heap must be open for writing. PM_USAGE: there
// is none.
int pm_dropped_set_aside(const char *name, char *kept, size_t size, struct pm_error *err);

#endif
