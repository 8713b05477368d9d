// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a clean close vouches for. Single words check themselves; that none of them is missing, or is an older one
// that came back, only a clean heap can tell: by comparison with what its close wrote down.
#ifndef PM_CLEAN_H
#define PM_CLEAN_H

#include <stdint.h>

#include "message.h"

// Writes it down, durably, just before pm_heap_clean(). `heap_bytes` is the length that the data file will have;
// `images_crc` is NULL where there are no roots.
void pm_clean_vouch(uint64_t heap_bytes, const uint32_t *images_crc);
// Compares it with the log as loaded and the data file; for a heap whose state is clean. The images are the
// collector's to compare.
int pm_clean_check(struct pm_error *err);

#endif
