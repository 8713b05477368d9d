// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a clean close vouches for. Each word on media checks itself. But its check cannot show that
// a word is missing, or that an older word has come back. The close record can: the next opening
// compares the heap with it.
#ifndef PM_CLOSE_RECORD_H
#define PM_CLOSE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

// Writes the record of each shard durably, just before pm_heap_clean(). `empty`: the data files
// are. `images_crc` is NULL where there are no roots.
void pm_close_record_write(bool empty, const uint32_t *images_crc);
// For a heap whose state is clean: compares the records with the loaded logs and data files. The
// collector compares the images.
int pm_close_record_check(struct pm_error *err);

#endif
