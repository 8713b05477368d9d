// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "boot.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "os.h"

#define BOOT_BYTES ((size_t)64 << 20)

static _Atomic(char *) arena;
static _Atomic size_t used;

static char *arena_base(void) {
    char *base = atomic_load_explicit(&arena, memory_order_acquire);
    if (base)
        return base;
    char *fresh = pm_os_reserve(BOOT_BYTES);
    // Release: whoever sees the pointer sees mapped memory. The loser of a race unmaps its own.
    if (fresh && !atomic_compare_exchange_strong_explicit(
                     &arena, &base, fresh, memory_order_acq_rel, memory_order_acquire)) {
        munmap(fresh, BOOT_BYTES);
        return base;
    }
    return fresh;
}

// The size stands in the 16 bytes before the block.
void *pm_boot_alloc(size_t size, size_t align) {
    char *base = arena_base();
    if (align < 16)
        align = 16;
    if (!base || size > BOOT_BYTES || align > BOOT_BYTES)
        return NULL;
    size_t need = ((size + 15) & ~(size_t)15) + 16 + align;
    size_t at = atomic_load_explicit(&used, memory_order_relaxed);
    do
        if (at + need > BOOT_BYTES)
            return NULL;
    while (!atomic_compare_exchange_weak_explicit(&used, &at, at + need, memory_order_relaxed,
                                                  memory_order_relaxed));
    uintptr_t p = ((uintptr_t)base + at + 16 + align - 1) & ~(uintptr_t)(align - 1);
    ((size_t *)p)[-1] = size;
    return (void *)p;
}

bool pm_boot_owns(const void *p) {
    uintptr_t base = (uintptr_t)atomic_load_explicit(&arena, memory_order_acquire);
    return base && (uintptr_t)p - base < BOOT_BYTES;
}

size_t pm_boot_size(const void *p) { return ((const size_t *)p)[-1]; }
