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

// ---- for capture.c: they move to the next table ----
uint32_t pm_dropped_count(const struct pm_root_table *t);
// The bytes that their images take in an area, in whole pages.
uint64_t pm_dropped_length(const struct pm_root_table *t);
// Copies the images of a table's area to `to`.
void pm_dropped_copy(const struct pm_root_table *t, const char *images, char *to);
// Adds their entries to the next table, with images from the offset `at` on in the file `roots`.
void pm_dropped_add(const struct pm_root_table *t, struct pm_root_table *next, uint64_t at);
// Maps the images of the table in force, and leaves them: whoever looks in this process for what is
// reached (leaks.h) finds them. That takes only writable memory for the program's.
int pm_dropped_map(struct pm_error *err);

#endif
