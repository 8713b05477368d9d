// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#ifndef PM_STREAMS_H
#define PM_STREAMS_H

// From here on libc's streams tell commit/triggers.h of what they read and write. Called before
// main. Says so if it cannot be done.
void pm_streams_cover(void);

#endif
