// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fallback.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "os.h"

#define DUMP_STEP ((size_t)1 << 20) // the part that core dumps contain grows in such steps

// A small one serves nearly every process. It leaves room under `ulimit -v`.
static struct arena {
    _Atomic(char *) map;
    _Atomic size_t used;
    _Atomic size_t bytes;
} arenas[2] = {{.bytes = PM_FALLBACK_SMALL}, {.bytes = PM_FALLBACK_LARGE}};

// As much as there is room for, under `ulimit -d`.
static char *reserve_most(size_t *bytes) {
    char *fresh;
    while (!(fresh = pm_os_reserve(*bytes)) && *bytes > PM_FALLBACK_SMALL)
        *bytes /= 2;
    return fresh;
}

static char *arena_map(struct arena *a) {
    char *map = atomic_load_explicit(&a->map, memory_order_acquire);
    if (map)
        return map;
    int saved = errno;
    size_t most = atomic_load_explicit(&a->bytes, memory_order_relaxed), bytes = most;
    char *fresh = reserve_most(&bytes);
    if (fresh && bytes > DUMP_STEP)
        pm_os_advise(fresh + DUMP_STEP, bytes - DUMP_STEP, MADV_DONTDUMP);
    errno = saved;
    if (fresh && bytes < most)
        atomic_store_explicit(&a->bytes, bytes, memory_order_relaxed);
    // Release: a thread that sees the pointer sees mapped memory. If another thread was faster, use
    // its memory and unmap ours.
    if (fresh && !atomic_compare_exchange_strong_explicit(
                     &a->map, &map, fresh, memory_order_acq_rel, memory_order_acquire)) {
        munmap(fresh, bytes);
        return map;
    }
    return fresh;
}

// The arena that an address lies in; NULL: none.
static struct arena *arena_of(const void *p) {
    for (struct arena *a = arenas; a < arenas + 2; a++) {
        uintptr_t map = (uintptr_t)atomic_load_explicit(&a->map, memory_order_acquire);
        if (map && (uintptr_t)p - map < a->bytes)
            return a;
    }
    return NULL;
}

// Lies before each block. The block, its head and the alignment take [at, at + need) of the arena.
// `seal` is right exactly while the block is handed out.
struct head {
    uint32_t at, need, size, seal;
};
_Static_assert(sizeof(struct head) == 16, "keeps blocks aligned");
_Static_assert(PM_FALLBACK_LARGE < UINT32_MAX, "the head's fields have room");

static struct head *head_of(const void *p) { return (struct head *)(uintptr_t)p - 1; }

static uint32_t seal_of(const struct head *h) {
    uint32_t place = (uint32_t)(uintptr_t)h >> 4; // user data that looks like a head lies elsewhere
    return 0x5ea1ed0b ^ place * 0x9e3779b1u ^ h->at ^ h->need << 5 ^ h->size << 11;
}

// Called when [from, to) has come into use: makes core dumps contain each DUMP_STEP that begins
// there, but the first, which they always contain. Two threads may do so for the same step; that
// does no harm.
static void dump(char *map, size_t from, size_t to) {
    size_t first = (from + DUMP_STEP - 1) / DUMP_STEP, end = (to + DUMP_STEP - 1) / DUMP_STEP;
    first = first ? first : 1;
    int saved = errno;
    if (first < end)
        pm_os_advise(map + first * DUMP_STEP, (end - first) * DUMP_STEP, MADV_DODUMP);
    errno = saved;
}

static void *alloc_in(struct arena *a, size_t size, size_t align) {
    char *map = size <= a->bytes && align <= a->bytes ? arena_map(a) : NULL;
    if (!map)
        return NULL;
    size_t need = ((size + 15) & ~(size_t)15) + sizeof(struct head) + align;
    size_t at = atomic_load_explicit(&a->used, memory_order_relaxed);
    do
        if (at + need > a->bytes)
            return NULL;
    // Acquire, with the release in pm_fallback_free(): if this memory was used before, the zeroes
    // that its last owner stored are visible here.
    while (!atomic_compare_exchange_weak_explicit(&a->used, &at, at + need, memory_order_acquire,
                                                  memory_order_relaxed));
    dump(map, at, at + need);
    uintptr_t p = ((uintptr_t)map + at + 16 + align - 1) & ~(uintptr_t)(align - 1);
    struct head *head = head_of((void *)p);
    *head = (struct head){.at = (uint32_t)at, .need = (uint32_t)need, .size = (uint32_t)size};
    head->seal = seal_of(head);
    return (void *)p;
}

void *pm_fallback_alloc(size_t size, size_t align) {
    size_t by = align < 16 ? 16 : align;
    void *p = alloc_in(&arenas[0], size, by);
    return p ? p : alloc_in(&arenas[1], size, by);
}

static bool has_room(struct arena *a, size_t bytes) {
    size_t used = atomic_load_explicit(&a->used, memory_order_relaxed);
    return arena_map(a) && used + bytes <= a->bytes;
}

bool pm_fallback_has_room(size_t bytes) { return has_room(&arenas[0], bytes); }

bool pm_fallback_has_large_room(size_t bytes) { return has_room(&arenas[1], bytes); }

void pm_fallback_free(void *p) {
    struct arena *a = arena_of(p);
    struct head h = *head_of(p);
    size_t top = (size_t)h.at + h.need;
    head_of(p)->seal = 0;
    if (atomic_load_explicit(&a->used, memory_order_relaxed) != top)
        return;
    // Clear before the memory becomes free. If another block is made meanwhile, the exchange fails
    // and the cleared memory stays used.
    memset(head_of(p), 0, sizeof h + h.size);
    atomic_compare_exchange_strong_explicit(&a->used, &top, h.at, memory_order_release,
                                            memory_order_relaxed);
}

bool pm_fallback_owns(const void *p) { return arena_of(p) != NULL; }

bool pm_fallback_is_block(const void *p) {
    struct arena *a = arena_of(p);
    uintptr_t at = (uintptr_t)p - (uintptr_t)atomic_load_explicit(&a->map, memory_order_relaxed);
    const struct head *h = head_of(p);
    return at % 16 == 0 && at >= sizeof *h && h->seal && h->seal == seal_of(h);
}

size_t pm_fallback_size(const void *p) { return head_of(p)->size; }
