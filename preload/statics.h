// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Destructors that have to wait for the end of the program.
#ifndef PM_PRELOAD_STATICS_H
#define PM_PRELOAD_STATICS_H

// Runs the destructors held back by __cxa_atexit(), the last registered first. Behind pm_runtime_exit().
void pm_statics_destroy(void);

#endif
