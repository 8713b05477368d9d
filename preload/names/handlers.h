// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PM_HANDLERS_H
#define PM_HANDLERS_H

#include <stddef.h>

#include "threads/action.h"

// The system call rt_sigaction, as the program makes it. Negative error.
long pm_handlers_syscall(long number, const struct pm_action *to, struct pm_action *was,
                         size_t size);

#endif
