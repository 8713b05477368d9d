// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The other threads of the process: are there any, and standing still for a moment. For the end of a program, when what
// they store must be cut off everywhere at one instant, and the kernel replaces one mapping at a time.
#ifndef PM_OTHERS_H
#define PM_OTHERS_H

#include <stdbool.h>

// Whether the calling thread is the only one. False where that cannot be found out.
bool pm_others_none(void);

// Has every other thread wait in a signal handler. The signal is one that libc keeps for itself (it runs setuid() in
// all threads by it), so no program has blocked or handles it. True: they stand still until pm_others_resume(), and the
// caller must not take any lock that it does not hold already, for one of them may. False: not all of them would stop
// within a fifth of a second, and all go on.
bool pm_others_stop(void);
void pm_others_resume(void);

#endif
