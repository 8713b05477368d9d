// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fallback.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "os.h"

#define ARENA_BYTES ((size_t)64 << 20)
#define DUMP_STEP ((size_t)1 << 20) // the part that core dumps contain grows in such steps

static _Atomic(char *) arena;
static _Atomic size_t used;

static char *arena_base(void) {
    char *base = atomic_load_explicit(&arena, memory_order_acquire);
    if (base)
        return base;
    int saved = errno;
    char *fresh = pm_os_reserve(ARENA_BYTES);
    if (fresh)
        pm_os_advise(fresh + DUMP_STEP, ARENA_BYTES - DUMP_STEP, MADV_DONTDUMP);
    errno = saved;
    // Release: a thread that sees the pointer sees mapped memory. If another thread was faster, use
    // its memory and unmap ours.
    if (fresh && !atomic_compare_exchange_strong_explicit(
                     &arena, &base, fresh, memory_order_acq_rel, memory_order_acquire)) {
        munmap(fresh, ARENA_BYTES);
        return base;
    }
    return fresh;
}

// Lies before each block. The block, its head and the alignment take [at, at + need) of the arena.
struct head {
    uint32_t at, need;
    uint64_t size;
};
_Static_assert(sizeof(struct head) == 16, "keeps blocks aligned");

static struct head *head_of(const void *p) { return (struct head *)(uintptr_t)p - 1; }

// Called when [from, to) has come into use: makes core dumps contain each DUMP_STEP that begins
// there. Two threads may do so for the same step; that does no harm.
static void dump(char *base, size_t from, size_t to) {
    size_t first = (from + DUMP_STEP - 1) / DUMP_STEP, end = (to + DUMP_STEP - 1) / DUMP_STEP;
    int saved = errno;
    if (first < end)
        pm_os_advise(base + first * DUMP_STEP, (end - first) * DUMP_STEP, MADV_DODUMP);
    errno = saved;
}

void *pm_fallback_alloc(size_t size, size_t align) {
    char *base = arena_base();
    if (align < 16)
        align = 16;
    if (!base || size > ARENA_BYTES || align > ARENA_BYTES)
        return NULL;
    size_t need = ((size + 15) & ~(size_t)15) + sizeof(struct head) + align;
    size_t at = atomic_load_explicit(&used, memory_order_relaxed);
    do
        if (at + need > ARENA_BYTES)
            return NULL;
    // Acquire, with the release in pm_fallback_free(): if this memory was used before, the zeroes
    // that its last owner stored are visible here.
    while (!atomic_compare_exchange_weak_explicit(&used, &at, at + need, memory_order_acquire,
                                                  memory_order_relaxed));
    dump(base, at, at + need);
    uintptr_t p = ((uintptr_t)base + at + 16 + align - 1) & ~(uintptr_t)(align - 1);
    *head_of((void *)p) = (struct head){(uint32_t)at, (uint32_t)need, size};
    return (void *)p;
}

void pm_fallback_free(void *p) {
    struct head h = *head_of(p);
    size_t top = (size_t)h.at + h.need;
    if (atomic_load_explicit(&used, memory_order_relaxed) != top)
        return;
    // Clear before the memory becomes free. If another block is made meanwhile, the exchange fails
    // and the cleared memory stays used.
    memset(head_of(p), 0, sizeof h + h.size);
    atomic_compare_exchange_strong_explicit(&used, &top, h.at, memory_order_release,
                                            memory_order_relaxed);
}

bool pm_fallback_owns(const void *p) {
    uintptr_t base = (uintptr_t)atomic_load_explicit(&arena, memory_order_acquire);
    return base && (uintptr_t)p - base < ARENA_BYTES;
}

size_t pm_fallback_size(const void *p) { return head_of(p)->size; }
