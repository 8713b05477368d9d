// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Roots whose restored value the program has replaced: main has set the variable up anew, and what
// it led to is not reached any more. The next start frees that, so one line says so while the
// program runs: at one of its first waits, or at its end.
//
//   start     notes for each restored root the first pointer into the heap, and what it leads to
//   a check   the pointer is gone from the root, the block is still allocated and begins in the
//             same way, and no root leads to it: it was left behind, neither freed nor moved
//
// A walk from the roots is bounded. Where it does not come to its end, nothing is said.
#ifndef PM_REPLACED_H
#define PM_REPLACED_H

#include <stdbool.h>

// Whether there is something to check. It ends with a line that is said, and after some checks.
extern bool pm_replaced_awaited;

// Once the roots are restored, before main.
void pm_replaced_note(void);
// When the program waits. It takes no lock that the program's threads may hold.
void pm_replaced_check(void);
// The last look, at the end of the program.
void pm_replaced_end(void);

#endif
