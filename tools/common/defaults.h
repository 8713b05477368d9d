// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The heaps below /dev/shm/pmalloc-UID, which programs get that name none.
#ifndef PM_TOOLS_DEFAULTS_H
#define PM_TOOLS_DEFAULTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "message.h"

enum default_state {
    DEFAULT_CLEAN,
    DEFAULT_DIRTY,
    DEFAULT_BUSY,
    DEFAULT_REMNANT, // of a removal or a start that was interrupted: it never held data, or no longer does
    DEFAULT_DAMAGED,
    DEFAULT_FOREIGN, // cannot be looked at
};

struct default_heap {
    char dir[512];
    enum default_state state;
    pid_t pid; // busy: by which process, 0 when that is not known
    bool roots;
    uint64_t bytes;      // on the file system
    bool removed, stuck; // stuck: was to be removed, but is still there
    char why[512];       // damaged, foreign, stuck: what is wrong
};

enum default_purge { PURGE_NONE, PURGE_ROOTLESS, PURGE_ALL };

// The directory's name, for the effective user.
const char *defaults_dir(void);
// Visits every default heap, by name, after removing it where `purge` says so: busy heaps never, those with
// roots or damage only with PURGE_ALL. PM_OK, also where there is none.
int defaults_each(enum default_purge purge,
                  void (*visit)(const struct default_heap *heap, void *arg), void *arg,
                  struct pm_error *err);

#endif
