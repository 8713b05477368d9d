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
// A start that is to collect beside the program (beside.h) does not heed the first.
//
// The size is on media in pm_state.kept, in units of 64 KiB; a bit of the word says that nobody has
// collected since a start kept everything. It is a hint: a wrong word is ignored. It is written
// only by starts that keep, and by collections after one.
#ifndef PM_KEPT_H
#define PM_KEPT_H

#include <stdbool.h>
#include <stdint.h>

// Whether the start must collect. The log has been read, and nothing has been written.
bool pm_kept_too_much(bool beside);
// After the sweep, in a heap open for writing.
enum pm_kept_how { PM_KEPT_COLLECTED, PM_KEPT_TRUSTED, PM_KEPT_ALL };
void pm_kept_record(enum pm_kept_how how);
// How many bytes were alive after the last marking, to 64 KiB; 0: not known. In pm_state.live, and
// a hint, too.
uint64_t pm_kept_live(void);
void pm_kept_live_record(uint64_t bytes);
// Whether garbage may still be taken for in use, because nobody has collected it since a start kept
// everything.
bool pm_kept_garbage(void);

#endif
