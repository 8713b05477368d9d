// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Whether the kernel may store to memory of the process on its own: it holds pages for direct or
// asynchronous I/O. Such a page must stay the one that the process sees: if a commit gave it back,
// what a device stores to it later would be lost.
#ifndef PM_KERNEL_STORES_H
#define PM_KERNEL_STORES_H

#include <stdbool.h>

// True also where it cannot be found out.
bool pm_kernel_stores(void);

#endif
