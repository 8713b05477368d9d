// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc_open(): the program opens its heap itself.
#ifndef PM_BY_CALL_H
#define PM_BY_CALL_H

#include <stdbool.h>

#include "base/message.h"

// Opens the heap at `dir`, if the process is cold or waiting (state/phase.h). On failure the
// process is as before, and errno says what kind of failure it is, if pm_heap and *err do not. The
// process ends (exit status 125) only if a heap that has been checked cannot be recovered.
int pm_process_open(const char *dir, bool existing, struct pm_error *err);

#endif
