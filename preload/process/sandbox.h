// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The program installs a seccomp filter, which may end it for system calls that PMAlloc makes in
// its threads. preload/names/filters.c tells of it just before. If the filter forbids what
//
//   a hold needs in each thread     a last commit is made, and there are no more commits
//   a commit needs                  the same, where the program's own threads make commits, or the
//                                   filter is for all threads (TSYNC), PMAlloc's too
//   the end of the program needs    the heap stays at the end as it is then. In commit mode that is
//                                   the last commit. In shared mode the destructors are left out,
//                                   because they would free what is in the heap
//
//   to hold threads takes           the end of a program with threads does not hold them: the heap
//                                   stays dirty (end_held.h); no line says that
//   the trap of a fork needs        forks are made without it (fork_trap.h); no line says that
//
//   a postponed handler needs        handlers run at once (threads/postpone.h); no line says that
//   PMALLOC_LOG needs               lines go to standard error
//   a child of PMALLOC_ON needs     no command is started
//   threads need that help to mark   the live collector marks in the thread that collects alone;
//                                   no line says that
//
// One line says it: of commits at once, else at the end. PMAlloc makes no system call for these
// after that. A filter that the program was started with is not seen.
#ifndef PM_SANDBOX_H
#define PM_SANDBOX_H

#include <linux/filter.h>
#include <stdbool.h>

struct pm_sandbox {
    const char *commits; // the first call that they would miss, or NULL
    const char *end;
    const char *no_mend; // the same of removed.h
    bool paused, mute, no_hold, no_helpers, no_detour, no_residency, no_drops, no_statx, no_trap,
        at_once, no_log, no_children;
};

// Before the call and after it, with errno kept. `filter` NULL: the strict mode. `all`: TSYNC.
void pm_sandbox_before(struct pm_sandbox *s, const struct sock_fprog *filter, bool all);
void pm_sandbox_after(const struct pm_sandbox *s, bool refused);

// Whether a filter forbids what the end of the program needs.
bool pm_sandbox_forbids_end(void);
void pm_sandbox_say_end(void);
// Whether a filter forbids to hold the other threads.
bool pm_sandbox_forbids_hold(void);
// Whether a filter forbids to print a line.
bool pm_sandbox_is_mute(void);

#endif
