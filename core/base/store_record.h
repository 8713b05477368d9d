// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The kernel's record of stores, from Linux 6.7 on: userfaultfd's asynchronous write protection. No
// fault ever reaches a process. The kernel notes the first store to each page that is protected,
// and lets it through; PAGEMAP_SCAN reads that and protects anew (pagemap_scan.h). Older headers
// lack it, so the names are ours.
#ifndef PM_STORE_RECORD_H
#define PM_STORE_RECORD_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>

// For the system call userfaultfd, which needs no privilege with the last of them.
#define PM_STORE_RECORD_FLAGS (O_CLOEXEC | O_NONBLOCK | 1)

// Of a new descriptor of userfaultfd. False: this kernel keeps no such record.
bool pm_store_record_prepare(int faults);
// From here on the kernel can protect pages of [start, start + len) of the process that made the
// descriptor; none is protected yet. Twice does no harm. False, with errno: it cannot there.
bool pm_store_record_watch(int faults, uint64_t start, uint64_t len);
// As before that: no page there is protected. False, with errno: they may be.
bool pm_store_record_end(int faults, uint64_t start, uint64_t len);

#endif
