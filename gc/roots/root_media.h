// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Functions that root_table.c offers to capture.c alone. There are two root tables on media: one in
// force, and the next one, which may be written.
#ifndef PM_ROOT_MEDIA_H
#define PM_ROOT_MEDIA_H

#include "media/format.h"
#include "spec.h"

// Maps the images of a table's captured pages read-only. The caller unmaps area_length bytes. NULL:
// there are none, or they cannot be mapped.
const void *pm_roots_images(const struct pm_root_table *table);
// Why pm_roots_images() gave NULL, or the images could not be mapped otherwise: errno says it.
int pm_roots_unmapped(struct pm_error *err);
// The next table. The caller fills in its count, area and roots.
struct pm_root_table *pm_roots_next_table(void);
// Makes the file system allocate the next table for `count` roots. PM_OPERATIONAL: it is full.
int pm_roots_back_table(uint32_t count, struct pm_error *err);
// Puts the next table in force. Its bytes are made durable first; then one 8-byte store of the
// epoch is the commit. Everything flushed before is durable with the table.
void pm_roots_switch(void);
// The spec that names a root of a table.
void pm_root_spec(const struct pm_root *root, struct pm_spec *spec);

#endif
