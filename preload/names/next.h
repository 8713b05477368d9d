// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The next function of a name: libc's, or another library's that has one in libc's place.
#ifndef PM_NAMES_NEXT_H
#define PM_NAMES_NEXT_H

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>

// `known` keeps it. May allocate the first time, so a call is put on record (threads/calls.h)
// afterwards. NULL: there is none; errno is ENOSYS.
static inline void *pm_next(_Atomic(void *) *known, const char *name) {
    void *next = atomic_load_explicit(known, memory_order_relaxed);
    if (__builtin_expect(next != NULL, 1))
        return next;
    next = dlsym(RTLD_NEXT, name);
    atomic_store_explicit(known, next, memory_order_relaxed);
    errno = next ? errno : ENOSYS;
    return next;
}

#endif
