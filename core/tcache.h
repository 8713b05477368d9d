// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Thread caches: a stack of free blocks per size class, out of line, owned by one thread alone. The hot path of
// malloc and free lives here: no lock, no atomic read-modify-write, no flush, no system call, no store to
// persistent memory. Budget: 25 instructions for malloc, 18 for free.
//
// The stacks are indexed by tag, so that the tags which are no class (0: nothing starts here, PM_TAG_EXTENT)
// find a stack of capacity 0 and take the slow path without a test of their own. A thread without a cache
// points to pm_no_tcache, whose stacks are all like that.
#ifndef PM_TCACHE_H
#define PM_TCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "pagemap.h"

#define PM_LIKELY(x) __builtin_expect(!!(x), 1)
#define PM_UNLIKELY(x) __builtin_expect(!!(x), 0)

// slot[0 .. n) are free blocks of the class, tagged 0; 0 <= n <= cap.
struct pm_stack {
    void **slot;
    uint32_t n;
    uint32_t cap;
};

struct pm_tcache {
    uint8_t *tag; // pm_tag and pm_base, here to share the cache line
    uint64_t base;
    uint64_t granules; // PM_GRANULES; 0 in pm_no_tcache
    struct pm_stack stack[PM_TAGS];
    struct pm_arena *arena;
    struct pm_tcache *next, *prev; // all live caches, or the spare ones
    uint16_t fill[PM_TAGS];        // blocks to take at the next refill; doubles up to cap / 2
};

extern __thread struct pm_tcache *pm_tcache __attribute__((tls_model("initial-exec")));
extern struct pm_tcache pm_no_tcache;

// A cached block of class `cls`, or NULL.
static inline void *pm_tcache_pop(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = &t->stack[cls];
    if (PM_UNLIKELY(s->n == 0))
        return NULL;
    void *p = s->slot[--s->n];
    __atomic_store_n(&t->tag[((uint64_t)(uintptr_t)p - t->base) >> PM_GRANULE_SHIFT], (uint8_t)cls,
                     __ATOMIC_RELAXED);
    return p;
}

// Caches the block at `p`; false when `p` is no allocated small block or its stack is full.
static inline bool pm_tcache_push(struct pm_tcache *t, void *p) {
    uint64_t granule = pm_granule_from(t->base, p);
    if (PM_UNLIKELY(granule >= t->granules))
        return false;
    struct pm_stack *s = &t->stack[__atomic_load_n(&t->tag[granule], __ATOMIC_RELAXED)];
    if (PM_UNLIKELY(s->n >= s->cap))
        return false;
    __atomic_store_n(&t->tag[granule], PM_TAG_NONE, __ATOMIC_RELAXED);
    s->slot[s->n++] = p;
    return true;
}

// A cache for this thread, NULL when memory is out. Spare caches of ended threads are used again.
struct pm_tcache *pm_tcache_create(void);
// Returns every block and makes the cache spare.
void pm_tcache_destroy(struct pm_tcache *t);
// Refills an empty stack from the arena; false when memory is out.
bool pm_tcache_refill(struct pm_tcache *t, unsigned cls);
// Makes room on a full stack by returning its older half.
void pm_tcache_trim(struct pm_tcache *t, unsigned cls);
// Returns every block of this cache to the slabs.
void pm_tcache_flush(struct pm_tcache *t);
// Live caches, that is, threads that have allocated.
unsigned pm_tcache_live(void);
// Blocks of a class held by all caches; a snapshot without synchronisation, for statistics.
uint64_t pm_tcache_held(unsigned cls);

// In a forked child, whose only thread owns `mine`: the other threads' caches give back their blocks.
void pm_tcache_orphans(struct pm_tcache *mine);
extern struct pm_lock pm_tcache_lock;

#endif
