// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The looker: a thread of PMAlloc's that opens files of /proc while the program runs. Its table of
// descriptors is its own and has nothing of the program's. The kernel gives each descriptor the
// lowest number that is free. A program counts on that: it closes 0, opens a file, and takes it to
// be 0. So a file that is opened in the program's table, be it for a moment, may take a number away
// from another thread of the program.
//
// It makes one system call at a time for whoever asks, with that thread's memory. A descriptor in
// its table is known by PM_LOOKER_FD. It does not share the working directory or the root either,
// so it sees /proc also after a chroot() of the program.
//
// There is one in commit mode, and while late roots are awaited (preload/commit/background.h). All
// functions keep errno.
#ifndef PM_LOOKER_H
#define PM_LOOKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PM_LOOKER_FD (1 << 30) // added to the numbers of its table, which are less

// Starts it. `proc`: a descriptor of /proc, which it keeps; -1: it opens /proc by its path. False:
// there is none, and files are opened in the program's table. It is called while no thread of the
// program's can see the numbers, or closes a file whose end others await: the thread begins with a
// copy of the table.
bool pm_looker_start(int proc);
// Ends it, and waits for that.
void pm_looker_stop(void);
// In a forked child: it is not there.
void pm_looker_forked(void);
// Whether there is one, and this is its process.
bool pm_looker_is_there(void);
// A debugger has halted all threads but the calling one, so it cannot be asked. The calling thread
// is the only one that could see a number.
void pm_looker_halted(bool on);

// Opens what lies below /proc. Returns its number with PM_LOOKER_FD, or a negative error.
// PM_LOOKER_NONE: there is no looker, or it does not answer.
#define PM_LOOKER_NONE (-0x10000l)
long pm_looker_open(const char *path, int flags);
// Opens it, reads as much as there is and fits, and closes it. Returns the bytes, or as above.
long pm_looker_text(const char *path, char *text, size_t size);
// A system call whose first argument is such a descriptor. Returns a negative error.
long pm_looker_call(long number, int fd, long b, long c, long d);

#endif
