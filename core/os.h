// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What PMAlloc asks of the kernel. None of these allocates; all keep errno unless they report through it.
#ifndef PM_OS_H
#define PM_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

// Zeroed private memory for volatile metadata, reserved but populated only where touched. NULL on failure.
void *pm_os_reserve(size_t bytes);
// madvise(), tried again where it was interrupted.
bool pm_os_advise(void *at, size_t len, int advice);
// Moves `fd` out of the way of programs that expect low numbers to be free (`exec 3>file`, dup2): returns
// the new close-on-exec descriptor, `fd` itself where no higher one is to be had.
int pm_os_fd_high(int fd);
// Whether a file may grow to `size` (RLIMIT_FSIZE); else errno is EFBIG. Trying would raise SIGXFSZ.
bool pm_os_file_size(uint64_t size);
// What occupies [base, base + len) in this process, for "range taken" messages; "" when nothing does.
void pm_os_who_maps(uint64_t base, uint64_t len, char *out, size_t outlen);
// Milliseconds of a coarse monotonic clock.
uint64_t pm_os_now_ms(void);
// Cores this process may run on, at least 1.
unsigned pm_os_cores(void);
// Whether the process `pid` that started at `start` is this process's parent, grandparent, ...: a number alone may be
// another process's by now, or in another namespace.
int pm_os_is_ancestor(pid_t pid, uint64_t start);
// When a process started, in clock ticks since boot, the same in every PID namespace; 0 when unknown.
uint64_t pm_os_start_time(pid_t pid);
// The state of a process, the letter in /proc/PID/stat ('T': stopped, 'Z': ended); 0 when there is no such process, or it
// cannot be found out.
char pm_os_state(pid_t pid);
// The process's id as /proc knows it, which in a PID namespace is not what getpid() says.
pid_t pm_os_proc_pid(void);
// The child that the calling thread forked last, as /proc knows it; 0 when that cannot be found out.
pid_t pm_os_newest_child(void);
// Whether the process has one thread; false where that cannot be found out.
bool pm_os_one_thread(void);
// Basename of the running executable ("ls"). False, and "unknown", where it cannot be found out.
bool pm_os_program_name(char *out, size_t outlen);
// A flat copy of the environment for callers that run before libc has set `environ`; NULL when unreadable.
char *const *pm_os_environ(void);

#endif
