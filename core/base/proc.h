// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// /proc, also where the program has lost sight of it: by chroot(), in another mount namespace, with
// another file system mounted there, or by Landlock. The files that commits look at are opened at
// the start and kept, at high numbers as the heap's own files. Whoever looks tries the path first,
// so as long as that works the kept descriptors cost nothing.
//
// "self" is the first thread, which may have ended (pthread_exit) or may share neither memory map
// nor descriptors with who asks. "thread-self" is the thread that asks.
#ifndef PM_PROC_H
#define PM_PROC_H

#include <stdatomic.h>
#include <stdbool.h>

// Keeps descriptors from here on, for this process; a forked child calls it again. False: /proc
// does not show this process. `ulimit -n` may be too low to keep them.
bool pm_proc_keep(void);
// Closes them: a child that makes no commits has no use for them, and its descriptors are counted.
void pm_proc_drop(void);

// Opens what lies below /proc to read it: "thread-self/maps". Negative, with errno: nobody can.
int pm_proc_open(const char *path, int flags);

// What was opened at the start, for who may open nothing any more. Of this process alone.
enum pm_proc_kept {
    PM_PROC_TASKS,   // the list of threads
    PM_PROC_PAGEMAP, // pages of this memory
    PM_PROC_KEPT,
};
// Opens it, or gives the kept descriptor, the list's at its start. Negative, with errno: neither
// can be had, or another thread uses the kept one.
int pm_proc_take(enum pm_proc_kept what);
void pm_proc_give_back(int fd);
// Calls `fn` for each that is kept.
void pm_proc_each_kept(void (*fn)(int fd, void *arg), void *arg);

// A filter of the program's forbids a call that PMAlloc can do without: where /proc is seen, of
// short runs of pages, of a socket's kind.
extern _Atomic bool pm_proc_no_detour;

#endif
