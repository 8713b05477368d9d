// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "pinned_cache.h"

#include <string.h>

#include "arena.h"
#include "base/own_memory.h"
#include "kinds.h"
#include "media/persist.h"
#include "pinned.h"
#include "pinned_table.h"

#define LEAST PM_PINNED_STRIPES // blocks of a class: with fewer the cache is refilled
#define CACHES_AT_ONCE 8u
#ifndef PM_CACHES_IN_TURN // 0 in a study build alone (scripts/study.mk): a cache is like a stack
#define PM_CACHES_IN_TURN 1
#endif

_Static_assert(PM_PINNED_STRIPES *PM_PINNED_DEPTH <= UINT8_MAX, "pm_pinned_class.count");

#define LOCK                                                                                       \
    { .lock = PM_LOCK(PM_RANK_PINNED) }
struct pm_pinned_lock pm_pinned_locks[PM_PINNED_LOCKS] = {[0 ... PM_PINNED_LOCKS - 1] = LOCK};

struct pm_pinned_cache *pm_pinned_cache_make(void) {
    static char *next;
    static unsigned left, number;
    const size_t each = sizeof(struct pm_pinned_cache);
    if (!left && (next = pm_own_reserve(CACHES_AT_ONCE * each)))
        left = CACHES_AT_ONCE;
    if (!left)
        return NULL;
    struct pm_pinned_cache *c = (struct pm_pinned_cache *)(void *)next;
    next += each;
    left--;
    c->lock = &pm_pinned_locks[number++ % PM_PINNED_LOCKS].lock;
    return c;
}

// The empty asm keeps the address in a register, as in pm_stack_of().
static inline struct pm_pinned_class *class_of(struct pm_pinned_cache *c, unsigned kind,
                                               unsigned cls) {
    struct pm_pinned_class *q = &c->cls[kind & PM_KIND_POINTER_FREE][cls];
    __asm__("" : "+r"(q));
    return q;
}

// Few large blocks, so that a thread keeps 200 KB of a class at most.
static uint8_t depth_of(unsigned cls) {
    unsigned usual = pm_classes[cls].tcache_cap / PM_PINNED_STRIPES;
    return (uint8_t)(usual < 2 ? 2 : usual > PM_PINNED_DEPTH ? PM_PINNED_DEPTH : usual);
}

// For those who look without the lock.
static inline void used(struct pm_pinned_cache *c) {
    __atomic_store_n(&c->uses, c->uses + 1, __ATOMIC_RELAXED);
}

static inline void filled(struct pm_pinned_cache *c, bool any) {
    __atomic_store_n(&c->filled, any, __ATOMIC_RELAXED);
}

// ---- the queues; the lock is held ---------------------------------------------------------------

static inline void *pop(struct pm_pinned_class *q, unsigned stripe) {
    void *p = q->at[stripe][q->first[stripe]];
    q->first[stripe] = (uint8_t)((q->first[stripe] + 1u) % PM_PINNED_DEPTH);
    q->n[stripe]--;
    q->count--;
    return p;
}

static inline void push(struct pm_pinned_class *q, unsigned stripe, void *p) {
    q->at[stripe][(q->first[stripe] + q->n[stripe]) % PM_PINNED_DEPTH] = p;
    q->n[stripe]++;
    q->count++;
}

static inline void begin_after(struct pm_pinned_class *q, unsigned stripe) {
    q->turn = (uint8_t)(stripe + 1 < PM_PINNED_STRIPES ? stripe + 1 : 0);
}

// The stripe to take from, of a class that has a block.
static inline unsigned next_stripe(struct pm_pinned_class *q) {
    unsigned stripe = q->turn;
    while (!q->n[stripe])
        stripe = stripe + 1 < PM_PINNED_STRIPES ? stripe + 1 : 0;
    begin_after(q, stripe);
    return stripe;
}

// Returns the oldest blocks of a stripe. They are no longer allocated on media.
static void give_back(struct pm_pinned_class *q, unsigned cls, unsigned stripe, unsigned count) {
    void *blocks[PM_PINNED_DEPTH];
    for (unsigned i = 0; i < count; i++)
        blocks[i] = pop(q, stripe);
    pm_arena_return(cls, blocks, count);
}

static unsigned number_of(const void *p, unsigned cls) {
    return pm_block_index(cls, (uint32_t)(pm_heap_offset(p) & (PM_SLAB_SIZE - 1)));
}

// ---- requests -----------------------------------------------------------------------------------

static inline __attribute__((always_inline)) void *take(struct pm_pinned_class *q, unsigned cls,
                                                        bool pin) {
    unsigned stripe = next_stripe(q);
    void *p = pop(q, stripe);
    __atomic_store_n(pm_tag_at(p), PM_TAG_KIND, __ATOMIC_RELAXED);
    if (pin)
        pm_pinned_set(pm_slab_of(p), cls, pm_vslabs[pm_slab_of(p)].media_line, stripe,
                      number_of(p, cls) / PM_PINNED_STRIPES);
    return p;
}

void *pm_pinned_cache_take(struct pm_pinned_cache *c, enum pm_kind kind, unsigned cls) {
    struct pm_pinned_class *q = class_of(c, kind, cls);
    if (!pm_trylock_raw(c->lock))
        return NULL;
    void *p = q->count >= LEAST ? take(q, cls, true) : NULL;
    pm_unlock_raw(c->lock);
    return p;
}

// Puts blocks into their queues; returns how many have room.
static unsigned push_all(struct pm_pinned_class *q, unsigned cls, void **blocks, unsigned count) {
    unsigned left = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned stripe = number_of(blocks[i], cls) % PM_PINNED_STRIPES;
        if (q->n[stripe] < PM_PINNED_DEPTH)
            push(q, stripe, blocks[i]);
        else
            blocks[left++] = blocks[i];
    }
    pm_arena_return(cls, blocks, left);
    return count - left;
}

// Up to half of what the cache may have. A slab gives blocks of the stripes in turn, so nearly all
// have room.
static void fill(struct pm_pinned_class *q, struct pm_arena *arena, unsigned cls) {
    void *blocks[PM_PINNED_STRIPES * PM_PINNED_DEPTH];
    unsigned most = PM_PINNED_STRIPES * depth_of(cls) / 2, got, kept;
    do {
        got = q->count < most ? pm_arena_fill(arena, cls, blocks, most - q->count) : 0;
        kept = push_all(q, cls, blocks, got);
    } while (kept);
}

void *pm_pinned_cache_refill(struct pm_pinned_cache *c, unsigned place, enum pm_kind kind,
                             unsigned cls) {
    struct pm_pinned_class *q = class_of(c, kind, cls);
    pm_lock(c->lock);
    if (q->count < LEAST)
        fill(q, &pm_arenas[pm_kind_arena(kind, place)], cls);
    filled(c, true);
    void *p = q->count ? take(q, cls, false) : NULL;
    pm_unlock(c->lock);
    return p;
}

// The tag is cleared by exchange, so of two frees of a block one fails. The bit goes before anybody
// can get the block.
static inline bool unpin(const void *p, unsigned cls, unsigned number, unsigned stripe) {
    if (__atomic_exchange_n(pm_tag_at(p), PM_TAG_NONE, __ATOMIC_RELAXED) != PM_TAG_KIND)
        return false;
    pm_pinned_clear(pm_slab_of(p), cls, pm_vslabs[pm_slab_of(p)].media_line, stripe,
                    number / PM_PINNED_STRIPES);
    return true;
}

static inline __attribute__((always_inline)) void
keep_freed(struct pm_pinned_cache *c, struct pm_pinned_class *q, unsigned stripe, void *p) {
    push(q, stripe, p);
    if (PM_CACHES_IN_TURN && pm_durability == PM_DURABLE_LINE)
        begin_after(q, stripe); // whose line has just been flushed
    else
        q->turn = (uint8_t)stripe; // whose line is in the processor's cache
    used(c);
    filled(c, true);
}

bool pm_pinned_cache_put(struct pm_pinned_cache *c, void *p) {
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of(p)];
    unsigned cls = pm_home_class(pm_slab_home(v));
    if (!cls || v->type || !pm_kind_is_pinned(v->kind) || !pm_trylock_raw(c->lock))
        return false;
    unsigned number = number_of(p, cls), stripe = number % PM_PINNED_STRIPES;
    struct pm_pinned_class *q = class_of(c, v->kind, cls);
    bool put = q->n[stripe] < q->depth && unpin(p, cls, number, stripe);
    if (put)
        keep_freed(c, q, stripe, p);
    pm_unlock_raw(c->lock);
    return put;
}

bool pm_pinned_cache_free(struct pm_pinned_cache *c, void *p) {
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of(p)];
    unsigned cls = pm_home_class(pm_slab_home(v)), number = number_of(p, cls);
    unsigned stripe = number % PM_PINNED_STRIPES;
    struct pm_pinned_class *q = class_of(c, v->kind, cls);
    pm_lock(c->lock);
    bool good = unpin(p, cls, number, stripe);
    if (good) {
        q->depth = depth_of(cls);
        if (q->n[stripe] >= q->depth)
            give_back(q, cls, stripe, q->depth / 2u);
        keep_freed(c, q, stripe, p);
    }
    pm_unlock(c->lock);
    return good;
}

// ---- all blocks ---------------------------------------------------------------------------------

uint64_t pm_pinned_cache_return(struct pm_pinned_cache *c) {
    uint64_t blocks = 0;
    if (!c || !__atomic_load_n(&c->filled, __ATOMIC_RELAXED))
        return 0;
    pm_lock(c->lock);
    for (unsigned kind = 0; kind < 2; kind++)
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
            struct pm_pinned_class *q = &c->cls[kind][cls];
            blocks += q->count;
            for (unsigned s = 0; s < PM_PINNED_STRIPES && q->count; s++)
                give_back(q, cls, s, q->n[s]);
        }
    filled(c, false);
    pm_unlock(c->lock);
    return blocks;
}

void pm_pinned_cache_drop(struct pm_pinned_cache *c) {
    if (!c || !c->filled)
        return;
    memset(c->cls, 0, sizeof c->cls);
    filled(c, false);
}

unsigned pm_pinned_cache_held(const struct pm_pinned_cache *c, unsigned cls) {
    return c ? (unsigned)__atomic_load_n(&c->cls[0][cls].count, __ATOMIC_RELAXED) +
                   __atomic_load_n(&c->cls[1][cls].count, __ATOMIC_RELAXED)
             : 0;
}
