// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_COLLECT=later: after a crash, a start keeps every old block and collects nothing. What
// the crash leaked stays until a start collects. This file says when one must:
//
//   the heap has more than doubled   since the last collection or, if there was none, since the
//                                    first start that kept all. So the sum of all leaks is bounded.
//   space is short                   less than an eighth of the heap's size is left, below its
//                                    limit or on the file system. The program may need what leaked.
//
// The size is on media in pm_state.kept, in units of 64 KiB. It is a hint: a wrong word counts as
// none. It is written only by starts that keep, and by collections after one.
#ifndef PM_KEPT_H
#define PM_KEPT_H

#include <stdbool.h>

// Whether the start must collect. The log has been read, and nothing has been written.
bool pm_kept_too_much(void);
// After the sweep, in a heap open for writing. `collected`: by this start; else it kept everything.
void pm_kept_record(bool collected);

#endif
