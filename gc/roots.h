// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The root table on media, and the capture of a process's variables into it.
//
// Each start writes a new table and new images of the captured pages beside the old ones, then switches with one
// 8-byte store of pm_state.root_epoch. Before the switch a crash leaves the old roots, after it the new ones,
// whose named bytes are the same.
#ifndef PMALLOC_GC_ROOTS_H
#define PMALLOC_GC_ROOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"
#include "message.h"

// The table in force, checked against its checksum, epoch and the roots file. NULL (PM_DAMAGE in err) when it is
// damaged; a table without roots is fine.
const struct pm_root_table *pm_roots_table(struct pm_error *err);
// Calls `fn` for the bytes of every root: captured images, and whether they are restored, and the slots. Images are
// mapped read-only.
int pm_roots_each(void (*fn)(const void *bytes, uint64_t len, bool restored, void *arg), void *arg,
                  struct pm_error *err);
// The spec of a root as PMALLOC_ROOTS would name it.
void pm_root_text(const struct pm_root *root, char *out, size_t outlen);
// CRC of the captured bytes of every root, in table order. False (and err) when they cannot be read.
bool pm_roots_images_crc(uint32_t *crc, struct pm_error *err);
// Removes every root whose text is `name`; PM_USAGE when there is none. The heap must be open for writing.
int pm_roots_drop(const char *name, struct pm_error *err);

// The collector's hooks; see collector.h.
int pm_roots_prepare(struct pm_error *err);
int pm_roots_capture(struct pm_error *err);
bool pm_roots_captured(const void *p);
bool pm_roots_privatise(void);
bool pm_roots_rejoin(void);
int pm_roots_remap(struct pm_error *err);
bool pm_roots_guard(bool on);

#endif
