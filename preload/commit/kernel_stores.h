// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Whether the kernel may store to memory of the process on its own: it has pages for direct or
// asynchronous I/O, or a device does. Such a page must stay the one that the process sees: if a
// commit gave it back, what a device stores to it later would be lost.
//
// Nobody can ask the kernel which pages these are. So the whole process is looked at, by
//
//   descriptors     of each thread's table: open for direct I/O, an io_uring, and each device that
//                   is not known to be harmless
//   VmPin           pages that are pinned for long
//   mappings        rings whose descriptor is closed
#ifndef PM_KERNEL_STORES_H
#define PM_KERNEL_STORES_H

#include <stdatomic.h>
#include <stdbool.h>

// True also where it cannot be found out. While threads are held, or where there is one.
bool pm_kernel_stores(void);

// The same, as it was first answered since the question is new: at an instant nobody gives the
// kernel pages, so one answer serves all who ask. A round asks anew. With the commit lock.
bool pm_kernel_stores_now(void);
void pm_kernel_stores_anew(void);

// The program has given pages to the kernel in a way that leaves no trace (vmsplice).
extern _Atomic bool pm_kernel_got_pages;

#endif
