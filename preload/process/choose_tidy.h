// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Default heaps that dead programs have left.
#ifndef PM_CHOOSE_TIDY_H
#define PM_CHOOSE_TIDY_H

// Looks at one default heap of this user, other than `own`, and removes it if its process has ended
// and it has no roots. `fd` and `parent` are the directory of the default heaps. Called before the
// process opens its own heap.
void pm_choose_tidy(int fd, const char *parent, const char *own);

#endif
