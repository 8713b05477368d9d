// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "boot.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
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

// Before each block. Its room is [at, at + need) of the arena.
struct head {
    uint32_t at, need;
    uint64_t size;
};
_Static_assert(sizeof(struct head) == 16, "keeps blocks aligned");

static struct head *head_of(const void *p) { return (struct head *)(uintptr_t)p - 1; }

void *pm_boot_alloc(size_t size, size_t align) {
    char *base = arena_base();
    if (align < 16)
        align = 16;
    if (!base || size > BOOT_BYTES || align > BOOT_BYTES)
        return NULL;
    size_t need = ((size + 15) & ~(size_t)15) + sizeof(struct head) + align;
    size_t at = atomic_load_explicit(&used, memory_order_relaxed);
    do
        if (at + need > BOOT_BYTES)
            return NULL;
    // Acquire: what the last owner of this room cleared is clear.
    while (!atomic_compare_exchange_weak_explicit(&used, &at, at + need, memory_order_acquire,
                                                  memory_order_relaxed));
    uintptr_t p = ((uintptr_t)base + at + 16 + align - 1) & ~(uintptr_t)(align - 1);
    *head_of((void *)p) = (struct head){(uint32_t)at, (uint32_t)need, size};
    return (void *)p;
}

void pm_boot_free(void *p) {
    struct head h = *head_of(p);
    size_t top = (size_t)h.at + h.need;
    if (atomic_load_explicit(&used, memory_order_relaxed) != top)
        return;
    memset(head_of(p), 0, sizeof h + h.size);
    atomic_compare_exchange_strong_explicit(&used, &top, h.at, memory_order_release,
                                            memory_order_relaxed);
}

bool pm_boot_owns(const void *p) {
    uintptr_t base = (uintptr_t)atomic_load_explicit(&arena, memory_order_acquire);
    return base && (uintptr_t)p - base < BOOT_BYTES;
}

size_t pm_boot_size(const void *p) { return head_of(p)->size; }
