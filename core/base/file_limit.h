// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// RLIMIT_FSIZE. A program that limits its files means what it writes itself, and not the files of
// its heap. So the limit is lifted around calls that make these longer, up to what it was when the
// process began, where the kernel allows that: to a process that has kept its hard limit, or to a
// privileged one. Meanwhile another thread's own writes are not limited either.
#ifndef PM_FILE_LIMIT_H
#define PM_FILE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

// Up to where a write is within the limit. A store through a mapping always is.
uint64_t pm_file_limit(void);
static inline bool pm_file_limit_allows(uint64_t size) { return size <= pm_file_limit(); }

struct pm_file_room {
    bool good;   // a file may grow to the size; if not, errno is EFBIG
    bool lifted; // the limit is lifted
};
// Before and after a call that makes a file of the heap longer. Asked first, because a write over
// the limit raises SIGXFSZ.
struct pm_file_room pm_file_room(uint64_t size);
void pm_file_room_end(struct pm_file_room room); // keeps errno

// In a forked child: no thread of the parent's has lifted it.
void pm_file_limit_forked(void);

// The program's own prlimit(). It waits until the limit is the program's. The first one tells what
// the limit was. A program that sets it by a system call of its own has what it asks for.
int pm_file_limit_set(pid_t pid, const struct rlimit *limit, struct rlimit *old);

#endif
