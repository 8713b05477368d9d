// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A file or device that a tool makes a fixed medium of, or makes larger: opened, locked and looked
// at.
#ifndef PM_FIXED_TARGET_H
#define PM_FIXED_TARGET_H

#include "media/backing/fixed.h"

struct pm_fixed_target {
    struct pm_medium *medium; // path, lock and device are set; the lock is for the parts, too
    bool one_of_several;      // that are opened; the caller sets it
    bool created;             // the file
    uint64_t there;           // bytes that it has
    uint64_t bytes;           // of which the heap takes up
    char *head;               // a mapping of its beginning, or NULL
    size_t head_len;
};

// Opens and locks what lies at `path`; with `size` and `create` a missing file is made. `there` and
// `bytes` are set, at most `size` if that is not 0. On failure pm_target_close() is still needed.
int pm_target_open(struct pm_fixed_target *t, const char *path, uint64_t size, bool create,
                   bool force, struct pm_error *err);
// Unmaps, closes and unlocks it; `remove`: a file that was made goes.
void pm_target_close(struct pm_fixed_target *t, bool remove);
// Maps its first `len` bytes.
int pm_target_map_head(struct pm_fixed_target *t, size_t len, struct pm_error *err);
// Whether the bytes are zeroes. If they are, they are durable when this returns.
int pm_target_make_zeroes(const struct pm_fixed_target *t, uint64_t from, uint64_t to,
                          struct pm_error *err);
// All stores there reach the medium. False, with errno.
bool pm_target_sync(const struct pm_fixed_target *t, const void *at, size_t len);
// The path, what was tried, and errno.
int pm_target_failed(const struct pm_fixed_target *t, const char *what, struct pm_error *err);

#define PM_TARGET_WINDOW ((uint64_t)64 << 20) // bytes that are mapped at a time

#endif
