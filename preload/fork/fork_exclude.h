// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Children that skip the handlers of a fork do not get the heap's contents.
#ifndef PM_FORK_EXCLUDE_H
#define PM_FORK_EXCLUDE_H

#include <stdbool.h>

// Children that the program makes without libc skip the handlers. With `on`, such a child finds
// nothing at the addresses of the heap and of the root pages. So it faults, which gives it private
// memory (stray.h), and cannot write its parent's heap. Volatile memory is left alone. False: the
// kernel has refused.
bool pm_fork_exclude(bool on);

#endif
