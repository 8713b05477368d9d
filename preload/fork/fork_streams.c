// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fork_streams.h"

#include <features.h>

#ifdef __GLIBC__
#include <sys/single_threaded.h>

extern void _IO_list_lock(void), _IO_list_unlock(void), _IO_list_resetlock(void);

bool pm_fork_streams_lock(void) {
    bool several = !__libc_single_threaded;
    if (several)
        _IO_list_lock();
    return several;
}

void pm_fork_streams_unlock(bool locked, bool child) {
    if (locked)
        (child ? _IO_list_resetlock : _IO_list_unlock)();
}
#else
bool pm_fork_streams_lock(void) { return false; }
void pm_fork_streams_unlock(bool locked, bool child) { (void)locked, (void)child; }
#endif
