// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Opens a heap whose last owner is just ending.
#ifndef PM_HEAP_PATIENT_H
#define PM_HEAP_PATIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "heap_open.h"

// As pm_heap_open() without `wait`, but waits up to 10 s for an owner that has been killed or is
// ending, and up to 3 s for the lock of a heap in one file that nobody has open. A program that
// starts right after a kill finds the kernel still busy with the dead process.
int pm_heap_open_patient(const char *dir, enum pm_open_mode mode, struct pm_error *err);

#endif
