// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a seccomp filter would say to a system call. Filters are programs of the classic BPF; this
// runs one as the kernel would. A program that is about to install a filter can so be asked in time
// whether we may go on with what we do in its threads (preload/process/sandbox.h).
#ifndef PM_FILTER_H
#define PM_FILTER_H

#include <linux/filter.h>
#include <stdint.h>

enum pm_filter_verdict {
    PM_FILTER_ALLOWS,
    PM_FILTER_FAILS, // the call fails, or somebody else answers it
    PM_FILTER_ENDS,  // the thread or the process is ended, or gets SIGSYS
};

// `filter` NULL: seccomp's strict mode. The call has this second argument, and else zeroes.
enum pm_filter_verdict pm_filter_asks(const struct sock_fprog *filter, long number,
                                      uint64_t second);

#endif
