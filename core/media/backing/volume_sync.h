// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Names in the directories of the heap become durable.
#ifndef PM_VOLUME_SYNC_H
#define PM_VOLUME_SYNC_H

#include "media/heap.h"

// New and removed names in this volume. False, with errno.
bool pm_volume_sync(unsigned volume);
// The same in all volumes, before anything relies on names that another process has made: it may
// have been killed before it synced them.
int pm_volumes_sync(struct pm_error *err);

#endif
