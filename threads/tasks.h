// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The threads of the process as /proc shows them. The kernel calls them tasks. Where /proc does not
// list them, our own record does (thread_list.h), and what /proc would say of one is not known.
#ifndef PM_TASKS_H
#define PM_TASKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PM_TASKS ((size_t)1 << 22) // the kernel's thread ids are less than this

// Calls `each` for every other thread of the program: not for PMAlloc's own (pm_os_is_own).
// False: the list cannot be read.
bool pm_tasks_each_other(void (*each)(pid_t id, void *arg), void *arg);
// The same until `each` returns false.
bool pm_tasks_each_other_until(bool (*each)(pid_t id, void *arg), void *arg);
// How many threads the process has, this one and PMAlloc's own included. 0: that cannot be known.
size_t pm_tasks_count(void);
// What one look at /proc tells of the process: of all threads, and all signals (bit 0 is signal 1).
struct pm_tasks_state {
    size_t threads;  // as pm_tasks_count()
    uint64_t caught; // the signals that have a handler
    uint64_t ignored;
};
// False: /proc cannot be seen.
bool pm_tasks_look(struct pm_tasks_state *state);
// Reads a file of the thread in /proc. False: it cannot be read; *gone then says whether the thread
// exists no more.
bool pm_task_read(pid_t id, const char *file, char *text, size_t len, bool *gone);
// The letter of its state in /proc: S sleeps, T stopped ... 0: that cannot be read, as above.
char pm_task_state(pid_t id, bool *gone);
// Whether it sleeps in the kernel, or has ended. One that waits for a processor does not sleep, nor
// does one that waits for a page.
bool pm_task_sleeps(pid_t id);
// Whether the thread will store nothing any more because it is exiting, or is a worker of the
// kernel's for io_uring, which runs none of the program's code and hears no signal. Stores of such
// a worker for a request are treated as stores of the kernel. A thread may still be listed after it
// was joined. The first thread stays listed after pthread_exit() until the process ends.
bool pm_task_is_dead(pid_t id);
// Reads memory of the process for which a thread may have to live. False, as above: the memory or
// the thread is no more.
bool pm_task_peek(pid_t id, const void *at, void *to, size_t len, bool *gone);

#endif
