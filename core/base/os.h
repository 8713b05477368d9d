// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What PMAlloc asks of the kernel. None of these functions allocates.
#ifndef PM_OS_H
#define PM_OS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

// What older headers lack.
#ifndef MAP_SYNC
#define MAP_SYNC 0x80000
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PM_HUGE_PAGE ((uint64_t)2 << 20) // bytes that the kernel maps at once

// Where a mapping of ours is to lie, as a hint for mmap: far from the addresses that the kernel
// chooses. Those belong to the program. So the modules that it loads lie where they lay, however
// large the heap has become meanwhile. If the place is taken, the kernel chooses.
void *pm_os_place(size_t bytes);
#define PM_OS_PLACES 0x340000000000u // the lowest one; they end where heaps begin
// Returns zeroed private memory for volatile metadata. The kernel provides pages only where it is
// touched. NULL: there is no address space.
void *pm_os_reserve(size_t bytes);
// The same, but out of bounds until its owner makes parts of it readable or writable.
void *pm_os_reserve_unused(size_t bytes);
// madvise(), repeated when it was interrupted.
bool pm_os_advise(void *at, size_t len, int advice);
// Moves `fd` to a high number, because programs expect low numbers to be free (`exec 3>file`,
// dup2): above the soft limit, where the hard one allows that. Returns the new close-on-exec
// descriptor, or `fd` if no high number is free.
int pm_os_fd_high(int fd);
// The lowest number that it has returned.
extern _Atomic int pm_os_fd_lowest;
// Whether a file may grow to `size` (RLIMIT_FSIZE); if not, errno is EFBIG. Asked first, because a
// write over the limit raises SIGXFSZ.
bool pm_os_file_size(uint64_t size);
// Whether a heap of `bytes` stays within RLIMIT_AS; if not, errno is ENOMEM. The kernel checks the
// limit only when the range is reserved. If the process lowers the limit after that, only this
// function keeps to it.
bool pm_os_address_space(uint64_t bytes);
// Writes to `out` which mapping of this process overlaps [base, base + len), for messages; "":
// none.
void pm_os_who_maps(uint64_t base, uint64_t len, char *out, size_t outlen);
// A monotonic clock, in nanoseconds; and a coarse one, in milliseconds.
uint64_t pm_os_now_ns(void);
uint64_t pm_os_now_ms(void);
// How many processor cores this process may run on, at least 1.
unsigned pm_os_cores(void);
// Whether the process `pid` that started at `start` is an ancestor of this process. The start is
// compared because the number may have been given to another process, or be one of another
// namespace.
bool pm_os_is_ancestor(pid_t pid, uint64_t start);
// Whether an ancestor of this process has the start of a file mapped private and writable: the file
// called `name` with inode number `ino`. False also if it cannot be found out.
bool pm_os_ancestor_maps(const char *name, uint64_t ino);
// When a process started, in clock ticks since boot. It is the same in every PID namespace. 0:
// unknown.
uint64_t pm_os_start_time(pid_t pid);
// A field of the text of a /proc `stat` file, by its position in proc(5), 4 or later. The name in
// field 2 may have any characters; the last ')' ends it. 0: there is no such field.
uint64_t pm_os_stat_number(const char *stat, unsigned field);
#define PM_STAT_FLAGS 9u         // the field of the flags:
#define PM_STAT_USER 14u         // the field of the time in the program, in clock ticks
#define PM_STAT_EXITING 0x4ul    // the thread is exiting
#define PM_STAT_IO_WORKER 0x10ul // one of the kernel's, for io_uring; since Linux 5.12
#define PM_STAT_SIGNALED 0x400ul // a signal has killed it; its core may be being written
// The state of a process: the letter in /proc/PID/stat ('T': stopped, 'Z': ended). 0: there is no
// such process, or it cannot be found out.
char pm_os_state(pid_t pid);
// Whether a process is ending: all its threads have been killed or are exiting. It may still hold
// its locks on files, because the kernel takes down its memory first. False also if it cannot be
// found out.
bool pm_os_is_ending(pid_t pid);
// This process's id in /proc. In a PID namespace it may differ from getpid().
pid_t pm_os_proc_pid(void);
// The id in /proc of the child that the calling thread forked last; 0: it cannot be found out.
pid_t pm_os_newest_child(void);
// The id of PMAlloc's own thread (preload/commit/background.h); 0: there is none. The program does
// not know it, so whoever looks for the threads of the process leaves it out. The kernel stores it
// (base/bare_thread.h).
extern _Atomic uint32_t pm_os_own_thread;
// The same of the looker (looker.h).
extern _Atomic uint32_t pm_os_looker;
// Whether the thread is one of these, and how many of them there are.
bool pm_os_is_own(uint32_t thread);
unsigned pm_os_own_count(void);
// Whether the process has one thread beside those that are exiting. False also if it cannot be
// found out.
bool pm_os_one_thread(void);
// The base name of the running executable ("ls"). False, and "unknown", if it cannot be found out.
bool pm_os_program_name(char *out, size_t outlen);
// The environment, for callers that may run before libc has set `environ`; then it is a copy. NULL:
// it cannot be read.
char *const *pm_os_environ(void);

// Makes the kernel copy the page at `p`, in a private mapping. It adds 0 to a byte with one locked
// instruction, so that a store of another thread is not lost. It is assembly, because compilers
// remove an addition of 0.
static inline void pm_os_copy_page(void *p) {
    __asm__ volatile("lock addb $0, %0" : "+m"(*(char *)p)::"memory", "cc");
}

#endif
