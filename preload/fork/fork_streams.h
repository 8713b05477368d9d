// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libc takes the lock of its list of streams after our handler of a fork. A thread that flushes
// them all holds it, and waits for a stream whose thread may wait for memory. So it is taken before
// our locks; libc takes it once more, and makes it anew in a child of several threads.
#ifndef PM_FORK_STREAMS_H
#define PM_FORK_STREAMS_H

#include <stdbool.h>

// Whether it was taken, for who gives it back.
bool pm_fork_streams_lock(void);
void pm_fork_streams_unlock(bool locked, bool child);

#endif
