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
//
// A signal handler may ask for memory, too. A pop or push seizes the stack by one instruction that reads n and raises
// it by PM_STACK_BUSY; until the store that ends the request a handler finds neither block nor room and takes the slow
// path, which leaves the stack alone. Before that instruction nothing has been read, after that store nothing is open,
// so at each point the handler sees the stack as before or after the request. Within one thread an instruction needs no
// lock prefix for this. The slow paths (refill, trim, flush) seize a stack in the same way.
#ifndef PM_TCACHE_H
#define PM_TCACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "pagemap.h"

#define PM_LIKELY(x) __builtin_expect(!!(x), 1)
#define PM_UNLIKELY(x) __builtin_expect(!!(x), 0)

#define PM_LATER_MAX 64

#define PM_STACK_BUSY                                                                              \
    (1u << 24) // above any cap; handlers within handlers add to it, and take it off again

// slot[0 .. n) are free blocks of the class, tagged 0; 0 <= n <= cap, but for PM_STACK_BUSY.
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
    // What handlers freed while a lock was held that their free may need; the next slow request frees it.
    void *later[PM_LATER_MAX];
    uint32_t later_count;
};

extern __thread struct pm_tcache *pm_tcache __attribute__((tls_model("initial-exec")));
extern struct pm_tcache pm_no_tcache;

// Its address in a register: left to itself, the compiler computes it anew for each field.
static inline struct pm_stack *pm_stack_of(struct pm_tcache *t, unsigned tag) {
    struct pm_stack *s = &t->stack[tag];
    __asm__("" : "+r"(s));
    return s;
}

// How many blocks the stack has; it is the caller's until pm_stack_leave(), unless PM_STACK_BUSY or more: then it is
// an interrupted request's, and pm_stack_leave() gives it back.
static inline uint64_t pm_stack_seize(struct pm_stack *s) {
    uint64_t n = PM_STACK_BUSY;
    __asm__ volatile("xaddl %k0, %1" : "+r"(n), "+m"(s->n) : : "cc");
    return n;
}

static inline void pm_stack_leave(struct pm_stack *s, uint64_t n) {
    atomic_signal_fence(memory_order_seq_cst);
    __atomic_store_n(&s->n, (uint32_t)n, __ATOMIC_RELAXED);
}

static inline uint32_t pm_stack_count(const struct pm_stack *s) {
    return __atomic_load_n(&s->n, __ATOMIC_RELAXED) & (PM_STACK_BUSY - 1);
}

// A cached block of class `cls`, or NULL.
static inline void *pm_tcache_pop(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = pm_stack_of(t, cls);
    uint64_t n = pm_stack_seize(s) - 1;
    if (PM_UNLIKELY(n >= PM_STACK_BUSY - 1)) {
        pm_stack_leave(s, n + 1);
        return NULL;
    }
    void *p = s->slot[n];
    if (!p)
        __builtin_unreachable();
    pm_stack_leave(s, n);
    __atomic_store_n(&t->tag[((uint64_t)(uintptr_t)p - t->base) >> PM_GRANULE_SHIFT], (uint8_t)cls,
                     __ATOMIC_RELAXED);
    return p;
}

// Caches the block at `p`; false when `p` is no allocated small block or its stack is full.
static inline bool pm_tcache_push(struct pm_tcache *t, void *p) {
    uint64_t granule = pm_granule_from(t->base, p);
    if (PM_UNLIKELY(granule >= t->granules))
        return false;
    struct pm_stack *s = pm_stack_of(t, __atomic_load_n(&t->tag[granule], __ATOMIC_RELAXED));
    uint64_t n = pm_stack_seize(s);
    if (PM_UNLIKELY(n >= s->cap)) {
        pm_stack_leave(s, n);
        return false;
    }
    __atomic_store_n(&t->tag[granule], PM_TAG_NONE, __ATOMIC_RELAXED);
    s->slot[n] = p;
    pm_stack_leave(s, n + 1);
    return true;
}

// A cache for this thread, NULL when memory is out. Spare caches of ended threads are used again.
struct pm_tcache *pm_tcache_create(void);
// Returns every block and makes the cache spare.
void pm_tcache_destroy(struct pm_tcache *t);
// Whether the thread may use its stack; not so in a handler that interrupted a request of this class.
bool pm_tcache_free_to_use(const struct pm_tcache *t, unsigned cls);
// Refills an empty stack from the arena; false when memory is out.
bool pm_tcache_refill(struct pm_tcache *t, unsigned cls);
// Makes room on a full stack by returning its older half.
void pm_tcache_trim(struct pm_tcache *t, unsigned cls);
// Returns every block of this cache to the slabs, but for stacks of requests that a handler interrupted.
void pm_tcache_flush(struct pm_tcache *t);
// Live caches, that is, threads that have allocated.
unsigned pm_tcache_live(void);
// Blocks of a class held by all caches; a snapshot without synchronisation, for statistics.
uint64_t pm_tcache_held(unsigned cls);

// In a forked child, whose only thread owns `mine`: the other threads' caches become spare, without their blocks.
void pm_tcache_orphans(struct pm_tcache *mine);
extern bool pm_tcache_lost; // so blocks that nobody has count as in use
extern struct pm_lock pm_tcache_lock;

#endif
