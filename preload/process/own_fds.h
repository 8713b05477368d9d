// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The descriptors of the heap's files. A program that closes a range of numbers up to the highest,
// as it may do before it starts another one, does not mean them: it does not know that they are
// there. They close themselves when a program is executed.
#ifndef PM_OWN_FDS_H
#define PM_OWN_FDS_H

#include <stdbool.h>

// Whether the descriptor is one of them.
bool pm_fd_is_own(int fd);
// As the system call close_range(); they stay open. Returns a negative error.
long pm_close_range(unsigned from, unsigned to, int flags);

#endif
