// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Limits of the program that the library's own share would use up: RLIMIT_AS, as heap and tables
// reserve more addresses than a program limits itself to, and RLIMIT_NPROC, which counts a thread
// of PMAlloc's. The kernel's limit is the program's and our share. The program sees its own, and a
// program that it executes has that.
#ifndef PM_OWN_LIMIT_H
#define PM_OWN_LIMIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

// The program's own prlimit() for this process, with RLIMIT_AS. [from, to): where what is reserved
// lies, and little else.
int pm_address_limit_set(uint64_t from, uint64_t to, const struct rlimit *limit,
                         struct rlimit *old);
// The same with RLIMIT_NPROC. `own`: how many threads of ours there are.
int pm_task_limit_set(unsigned own, const struct rlimit *limit, struct rlimit *old);
// Whether the program's memory may have `bytes` bytes.
bool pm_address_limit_allows(uint64_t bytes);
// The same by a limit that the program has set, and without a system call.
bool pm_address_limit_told_allows(uint64_t bytes);
// Around the execution of another program: the kernel's limits are the program's. False: they are
// in any case.
bool pm_own_limits_give_up(bool on);

#endif
