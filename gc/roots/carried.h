// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Roots of the heap that this process does not capture: those that were dropped (dropped.h), and
// those that wait (parts.h). Their entries and images go from table to table, so that what they
// reach stays alive. `which` says which ones they are.
#ifndef PM_ROOTS_CARRIED_H
#define PM_ROOTS_CARRIED_H

#include <stdbool.h>

#include "base/message.h"
#include "media/format.h"

typedef bool pm_root_is(const struct pm_root *root);

uint32_t pm_carried_count(const struct pm_root_table *t, pm_root_is *which);
// The bytes that their images take in an area, in whole pages.
uint64_t pm_carried_length(const struct pm_root_table *t, pm_root_is *which);
// Copies the images of a table's area to `to`.
void pm_carried_copy(const struct pm_root_table *t, pm_root_is *which, const char *images,
                     char *to);
// Adds their entries to the next table, with images from the offset `at` on in the file `roots`.
void pm_carried_add(const struct pm_root_table *t, pm_root_is *which, struct pm_root_table *next,
                    uint64_t at);
// Maps the images of the table in force, in the place of what was mapped before, and leaves them:
// whoever looks in this process for what is reached (leaks.h) finds them. That takes only writable
// memory for the program's.
int pm_carried_map(pm_root_is *which, struct pm_error *err);

#endif
