// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Calls that close many descriptors at once. The heap's descriptors stay open (process/own_fds.h).
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

#include "export.h"
#include "process/own_fds.h"

// Beside the headers' declarations, which older ones lack.
int pm_names_close_range(unsigned from, unsigned to, int flags) __asm__("close_range");
void pm_names_closefrom(int from) __asm__("closefrom");

EXPORT int pm_names_close_range(unsigned from, unsigned to, int flags) {
    long result = pm_close_range(from, to, flags);
    if (result == 0)
        return 0;
    errno = (int)-result;
    return -1;
}

// An older kernel has no such call, and libc looks in /proc.
EXPORT void pm_names_closefrom(int from) {
    void (*by_libc)(int);
    if (pm_close_range(from > 0 ? (unsigned)from : 0, ~0u, 0) != -ENOSYS)
        return;
    *(void **)&by_libc = dlsym(RTLD_NEXT, "closefrom");
    if (by_libc)
        by_libc(from);
}
