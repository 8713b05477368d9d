// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Between roots.c and capture.c: the table's two halves.
#ifndef PMALLOC_GC_ROOTS_TABLE_H
#define PMALLOC_GC_ROOTS_TABLE_H

#include "layout.h"
#include "rootspec.h"

// The captured images of a table's area, mapped read-only; the caller unmaps area_length bytes. NULL when the area
// is empty or cannot be mapped.
const void *pm_roots_images(const struct pm_root_table *table);
// The table that is not in force, to be filled (count, area, roots) ...
struct pm_root_table *pm_roots_next_table(void);
// Has the file system allocate it as far as `count` roots go; PM_OPERATIONAL where that is full.
int pm_roots_back_table(uint32_t count, struct pm_error *err);
// ... and put in force: its bytes durable first, then one 8-byte store.
void pm_roots_switch(void);
void pm_root_spec(const struct pm_root *root, struct root_spec *spec);

#endif
