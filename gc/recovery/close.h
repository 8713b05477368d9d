// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The clean close, by a program at its end and by a tool after a recovery. Nothing allocates or
// frees any more. A process that goes on after this has parted from the heap.
//
//   1 the contents     bitmaps of the slabs (or an emptied heap)
//   2 the record       what the next opening compares: log, length, root images
//   3 the state word   every file durable first, then one store: "clean"
//
// A crash before 3 is a crash of a heap in use: the next opening marks and sweeps.
#ifndef PM_CLOSE_H
#define PM_CLOSE_H

#include <stdbool.h>

// With what is in it. False: the heap stays dirty, and nothing is lost.
bool pm_close(void);
// The same for a heap that has no roots: nothing can reach what is in it, so it is emptied first.
bool pm_close_rootless(void);

#endif
