// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The default heaps: programs that name no heap get one below /dev/shm/pmalloc-UID.
#ifndef PM_TOOLS_DEFAULTS_H
#define PM_TOOLS_DEFAULTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/message.h"

enum default_state {
    DEFAULT_CLEAN,
    DEFAULT_DIRTY,
    DEFAULT_BUSY,
    // Left by an interrupted start or removal. It has no data: not yet, or no longer.
    DEFAULT_REMNANT,
    DEFAULT_DAMAGED,
    DEFAULT_FOREIGN, // it could not be looked at; `why` says why
};

struct default_heap {
    char dir[512];
    enum default_state state;
    pid_t pid; // busy: the process that has it open; 0: not known
    bool roots;
    uint64_t bytes;      // on the file system
    bool removed, stuck; // stuck: it could not be removed
    char why[512];       // damaged, foreign, stuck: what is wrong
};

enum default_purge { PURGE_NONE, PURGE_ROOTLESS, PURGE_ALL };

// Whether a purge removes a heap in this state.
bool default_is_purged(const struct default_heap *h, enum default_purge purge);
// The name of the directory of the effective user's default heaps.
const char *defaults_dir(void);
// Calls `visit` for every default heap, in the order of their names. Before that it removes the
// heap if `purge` says so. A busy heap is never removed, a heap with roots or damage only with
// PURGE_ALL. PM_OK, also if there are no heaps.
int defaults_each(enum default_purge purge,
                  void (*visit)(const struct default_heap *heap, void *arg), void *arg,
                  struct pm_error *err);

#endif
