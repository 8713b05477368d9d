// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// At a clean end: one line if words of live blocks lead out of the heap (recovery/out.h). A heap
// that is too large for a short look is left to the next start, which marks anyway.
#ifndef PM_OUT_END_H
#define PM_OUT_END_H

#include <stdbool.h>

// No other thread runs, and no block is in a thread cache. The heap is still shared. True: there is
// something to say, now or once other threads go on.
bool pm_out_end_look(void);
void pm_out_end_say(void);

#endif
