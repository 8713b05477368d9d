// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PM_TOOLS_BACKUP_VERIFY_H
#define PM_TOOLS_BACKUP_VERIFY_H

#include <stdint.h>

#include "backup_target.h"
#include "recovery/mark.h"

// Reads every block of the backup and compares it with its checksum. *read becomes the number of
// bytes. PM_DAMAGE: `err` names the first wrong block.
int backup_verify(const struct target *t, pm_progress *progress, uint64_t *read,
                  struct pm_error *err);

#endif
