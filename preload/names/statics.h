// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Destructors that have to wait for the end of the program (preload/process/end.c).
#ifndef PM_PRELOAD_STATICS_H
#define PM_PRELOAD_STATICS_H

// `gate` ends the program, or waits until another caller has done so. It returns after the end.
void pm_statics_init(void (*gate)(void));
// Runs the destructors that __cxa_atexit() has postponed, the last registered first. Called after
// pm_process_end().
void pm_statics_destroy(void);

#endif
