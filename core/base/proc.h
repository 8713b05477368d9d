// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// /proc, also where the program has lost sight of it: by chroot(), in another mount namespace, with
// another file system mounted there, or by Landlock. The files that commits look at most are
// opened at the start and kept, at high numbers as the heap's own files. What is opened later is
// opened by the looker (looker.h), if there is one, for the low numbers are the program's.
//
// "self" is the first thread, which may have ended (pthread_exit) or may share neither memory map
// nor descriptors with who asks. "thread-self" is the thread that asks.
#ifndef PM_PROC_H
#define PM_PROC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// Keeps descriptors from here on, for this process; a forked child calls it again. False: /proc
// does not show this process. `ulimit -n` may be too low to keep them.
bool pm_proc_keep(void);
// Closes them: a child that makes no commits has no use for them, and its descriptors are counted.
void pm_proc_drop(void);

// The kept descriptor of /proc itself; -1: there is none.
int pm_proc_root(void);

// Opens what lies below /proc to read it: "self/maps". Negative, with errno: nobody can. The number
// may be one of the looker's, so only the functions here take it.
// "thread-self" may then be the looker, which shares with the caller all but its numbers.
int pm_proc_open(const char *path, int flags);
// The same for a file of the calling thread: "fd".
int pm_proc_open_mine(const char *name, int flags);
ssize_t pm_proc_read(int fd, void *to, size_t size);
void pm_proc_close(int fd);
// As pm_os_each_name().
bool pm_proc_each_name(int fd, bool (*each)(const char *name, void *arg), void *arg);
// A system call whose first argument is such a descriptor. -1, with errno.
long pm_proc_call(long number, int fd, long b, long c, long d);
// What is in the file, as far as it fits, with a 0 behind it. Negative, with errno, and no text.
ssize_t pm_proc_text(const char *path, char *text, size_t size);

// What was opened at the start. Of this process alone.
enum pm_proc_kept {
    PM_PROC_TASKS,   // the list of threads
    PM_PROC_PAGEMAP, // pages of this memory
    PM_PROC_STATUS,  // of this process
    PM_PROC_STATM,   // its memory in numbers
    PM_PROC_KEPT,
};
// Gives the kept descriptor, the list's at its start, or opens it: if the program has closed it, or
// another thread uses it. Negative, with errno: neither can be had.
int pm_proc_take(enum pm_proc_kept what);
void pm_proc_give_back(int fd);
// What is in one of the latter two, as pm_proc_text(): also when the first thread has ended.
ssize_t pm_proc_kept_text(enum pm_proc_kept what, char *text, size_t size);
// Calls `fn` for each that is kept.
void pm_proc_each_kept(int only, void (*fn)(int fd, void *arg), void *arg);

// A filter of the program's forbids a call that PMAlloc can do without: where /proc is seen, of
// short runs of pages, of holes, of a socket's kind, of an eventfd.
extern _Atomic bool pm_proc_no_detour;

#endif
