// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Brings a heap that lies in a directory onto a fixed medium (fixed_make.h): the other way round
// than pmalloc-backup.
#ifndef PM_FIXED_COPY_H
#define PM_FIXED_COPY_H

#include "fixed_target.h"
#include "media/heap.h"

// Whether the open heap can be copied: it is in a directory, open read only, with no commit in its
// journal. Opens those of its files that an open heap does not keep open, until
// pm_fixed_copy_end().
int pm_fixed_copy_begin(struct pm_error *err);
void pm_fixed_copy_end(void);
// The bytes of its longest record of loaded objects.
uint64_t pm_fixed_copy_record(void);
// Whether it fits onto the medium with this layout, as far as that has parts of it. A medium after
// its last shard has an empty one.
int pm_fixed_copy_check(const struct pm_layout *layout, const char *path, struct pm_error *err);
// Stores the parts before heap.N, and all lengths, into `head`, which the caller makes durable.
bool pm_fixed_copy_head(char *head, const struct pm_layout *layout);
// Stores heap.N into its part of the medium, durably. False, with errno.
bool pm_fixed_copy_data(const struct pm_fixed_target *t, const struct pm_layout *layout);

// After one of these has failed: the name of the heap's file that could not be read, or NULL.
const char *pm_fixed_copy_unread(void);

#endif
