// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The flags of pmalloc.h that stay with a block.
#ifndef PM_WALK_H
#define PM_WALK_H

#include "blocks/found.h"

unsigned pm_flags_of(const struct pm_found *found);

#endif
