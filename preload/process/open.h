// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The process opens its heap: the one of the settings, or that of pmalloc_open(). Called by the one
// thread that starts (state/phase.h: STARTING).
#ifndef PM_OPEN_H
#define PM_OPEN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"
#include "choose.h"
#include "recovery/recover.h"

// Reads the settings, and whether they leave the process without a heap. `called`: it has called
// pmalloc_open() before anything else.
int pm_open_decide(bool called, struct pm_error *err);
const struct pm_chosen *pm_open_chosen(void);
// Opens the heap that the settings name, and recovers it; or begins on volatile memory. On failure
// nothing is open.
int pm_open_heap(struct pm_error *err);
// The same for the heap at `dir`, which stays valid. It ends the process only if a heap that has
// been checked cannot be recovered.
int pm_open_called(const char *dir, bool existing, struct pm_error *err);
// Says why, and ends the process (exit status 125).
_Noreturn void pm_open_refuse(const struct pm_error *err);

// Whether the settings ask for more than a default heap for this program.
bool pm_process_wanted(void);
// Whether the heap that is open was opened by pmalloc_open().
bool pm_process_opened_by_call(void);
// It is closed, so it has no generation any more.
void pm_process_forget_heap(void);
// What the recovery at the start has found.
const struct pm_recovery *pm_process_recovery(void);
// Whether the byte at `p` belongs to a captured root.
bool pm_process_is_root(const void *p);
// Whether the heap is a default heap.
bool pm_process_default_heap(void);
// How often the heap has been opened, this time included; 0 without a heap. Forked children keep
// the number, because their locks belong to this run.
uint64_t pm_process_generation(void);

#endif
