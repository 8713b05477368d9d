// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-recover --drop-root. The root stays under another name, so that its data can be had back,
// until it is dropped by that name; see gc/roots/dropped.h.
#ifndef PM_TOOLS_DROP_ROOT_H
#define PM_TOOLS_DROP_ROOT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/message.h"
#include "recovery/recover.h"

// Asks the user, where that is due. False: the answer is no.
bool drop_root_may(const char *heap, const char *name, bool yes, const struct pm_recovery *found);
// Writes to `kept` the name under which the root stays, or leaves it empty.
int drop_root(const char *name, char *kept, size_t size, struct pm_error *err);
// The lines of the report, if it stays.
void drop_root_text(const char *heap, const char *name, const char *kept);

#endif
