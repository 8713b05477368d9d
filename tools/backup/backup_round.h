// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// One round of a backup. Of a heap in use it halts the program for a moment (backup_live.h).
#ifndef PM_TOOLS_BACKUP_ROUND_H
#define PM_TOOLS_BACKUP_ROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "backup_source.h"
#include "backup_target.h"

struct round {
    uint64_t number;
    bool first;
    bool nothing;     // nothing has changed since the round before: no increment was written
    uint64_t changed; // bytes of the blocks that had changed
    uint64_t written; // bytes written to the directory
};

// Copies everything into an empty directory or an unfinished backup.
int round_first(struct source *s, struct target *t, pm_progress *progress, struct round *r,
                struct pm_error *err);
// Appends what has changed. Until the last step the backup of the round before stands.
int round_next(struct source *s, struct target *t, pm_progress *progress, struct round *r,
               struct pm_error *err);

#endif
