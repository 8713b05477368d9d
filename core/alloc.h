// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The allocation functions, with libc's contracts; preload gives them libc's names. All are thread-safe. On
// failure they return NULL and set errno to ENOMEM; free and its kin keep errno.
#ifndef PM_ALLOC_H
#define PM_ALLOC_H

#include <stddef.h>

#include "tcache.h"

void *pm_malloc_slow(size_t size);
void pm_free_slow(void *p);
// Frees what signal handlers of this thread had to leave; it has a cache.
void pm_free_left_over(void);

static inline void *pm_malloc(size_t size) {
    if (PM_LIKELY(size <= PM_SMALL_MAX)) {
        void *p = pm_tcache_pop(pm_tcache, pm_size_to_class(size));
        if (PM_LIKELY(p != NULL))
            return p;
    }
    return pm_malloc_slow(size);
}

static inline void pm_free(void *p) {
    if (PM_UNLIKELY(!pm_tcache_push(pm_tcache, p)))
        pm_free_slow(p);
}

void *pm_calloc(size_t count, size_t size);
// As glibc: realloc(p, 0) frees p and returns NULL.
void *pm_realloc(void *p, size_t size);
// `align` is a power of two.
void *pm_memalign(size_t align, size_t size);
size_t pm_usable_size(void *p);
// Gives this thread's cached blocks and all free space back; true when any space was.
bool pm_trim(void);

#endif
