// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the tools need around pm_offline_*: messages that make sense outside a program, and the heap's roots.
#ifndef PM_TOOLS_OFFLINE_H
#define PM_TOOLS_OFFLINE_H

#include "heap.h"
#include "roots.h"

// pm_offline_open() with default settings. The heap stays open until the process ends.
int offline_open(const char *dir, enum pm_open_mode mode, struct pm_error *err);
// Fills `err` for a heap that pm_heap_open() found busy; returns its status.
int offline_busy(const char *dir, struct pm_error *err);

// Calls `fn` for every root of the table, a whole object once and with the length of all its segments. The number
// of calls.
unsigned offline_each_root(void (*fn)(const struct pm_root *root, const char *text, void *arg),
                           void *arg);
unsigned offline_slots_used(void);

#endif
