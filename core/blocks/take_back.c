// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "take_back.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bits.h"
#include "extent_cache.h"
#include "returns.h"
#include "room.h"
#include "tcache.h"

struct pm_take_back_counters pm_take_back_counters;

static void count(_Atomic uint64_t *counter, uint64_t more) {
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

// Every other thread passes a full barrier before this returns. False: the kernel refuses.
static bool barrier(void) {
    return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
           (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
            membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
}

// ---- the caches of other threads; pm_tcache_lock is held ----------------------------------------

// Whose caches: all other threads' or those of idle ones.
typedef bool may_fn(const struct pm_tcache *t);

static bool is_other(const struct pm_tcache *t) { return t != pm_tcache; }

// The owner may add stacks at this moment: they are left alone.
static unsigned stacks_of(const struct pm_tcache *t) {
    return __atomic_load_n(&t->stacks, __ATOMIC_RELAXED);
}

// A number for the heights of all stacks, 0 if all are empty.
static uint64_t heights(const struct pm_tcache *t) {
    uint64_t sum = 0;
    for (unsigned tag = 1; tag < stacks_of(t); tag++) {
        uint64_t n = pm_stack_count(&t->stack[tag]);
        sum += n ? n * (2 * tag + 1) + ((uint64_t)t->slow_requests << 32) : 0;
    }
    const struct pm_pinned_cache *c = t->pinned;
    if (c && __atomic_load_n(&c->filled, __ATOMIC_RELAXED))
        sum +=
            1 + ((uint64_t)(__atomic_load_n(&c->uses, __ATOMIC_RELAXED) + t->slow_requests) << 32);
    return sum;
}

static bool is_idle(const struct pm_tcache *t) {
    return is_other(t) && t->heights && t->heights == heights(t);
}

static bool any_cached(may_fn *may_take) {
    for (const struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        if (may_take(t) && heights(t))
            return true;
    return false;
}

// Step 1.
static void mark(struct pm_tcache *t) {
    for (unsigned tag = 1; tag < stacks_of(t); tag++) {
        struct pm_stack *s = &t->stack[tag];
        int16_t open = 0;
        if (pm_stack_count(s) &&
            __atomic_compare_exchange_n(&s->seized, &open, PM_STACK_TAKEN, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED))
            pm_bit_set(t->marked, tag);
    }
}

// Step 3.
static uint64_t empty(struct pm_tcache *t) {
    uint64_t blocks = 0;
    PM_EACH_BIT(tag, t->marked, PM_STACK_WORDS) {
        struct pm_stack *s = &t->stack[tag];
        if (!pm_stack_taken(s))
            continue;
        uint32_t n = __atomic_load_n(&s->n, __ATOMIC_RELAXED);
        pm_arena_return(pm_tag_class(tag), t->slot[tag], n);
        blocks += n;
        // Release: the owner may use the stack from here.
        atomic_fetch_or_explicit(&t->emptied[tag / 64], 1ull << tag % 64, memory_order_release);
    }
    return blocks;
}

static uint64_t take(may_fn *may_take) {
    struct pm_tcache *t;
    uint64_t blocks = 0;
    for (t = pm_tcache_first; t; t = t->next) {
        memset(t->marked, 0, sizeof t->marked);
        if (may_take(t))
            mark(t);
    }
    // It worked a moment ago. If it did not now, nobody would use the blocks until the next
    // recovery.
    if (!barrier())
        return 0;
    for (t = pm_tcache_first; t; t = t->next)
        blocks += empty(t);
    return blocks;
}

static void ask(may_fn *may_take) {
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        if (may_take(t)) {
            __atomic_store_n(&t->granules, 0, __ATOMIC_RELAXED);
            count(&pm_take_back_counters.asked, 1);
        }
}

// These have a lock.
static uint64_t take_pinned(may_fn *may_take) {
    uint64_t blocks = 0;
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        if (may_take(t))
            blocks += pm_pinned_cache_return(t->pinned);
    return blocks;
}

// pm_tcache_lock is held.
static uint64_t take_or_ask(may_fn *may_take) {
    uint64_t blocks = 0;
    if (any_cached(may_take)) {
        if (barrier())
            blocks = take(may_take);
        else
            ask(may_take);
        blocks += take_pinned(may_take);
    }
    count(&pm_take_back_counters.blocks, blocks);
    return blocks;
}

static uint64_t take_from_others(void) {
    pm_lock(&pm_tcache_lock);
    uint64_t blocks = take_or_ask(is_other);
    pm_unlock(&pm_tcache_lock);
    return blocks;
}

void pm_take_back_idle(void) {
    int saved = errno;
    pm_lock(&pm_tcache_lock);
    take_or_ask(is_idle);
    for (struct pm_tcache *t = pm_tcache_first; t; t = t->next)
        t->heights = heights(t);
    pm_unlock(&pm_tcache_lock);
    errno = saved;
}

// ---- everything ---------------------------------------------------------------------------------

bool pm_take_back(void) {
    int saved = errno;
    uint64_t own = 0;
    if (pm_tcache != &pm_no_tcache) {
        for (unsigned tag = 1; tag < pm_tcache->stacks; tag++)
            own += pm_stack_count(&pm_tcache->stack[tag]);
        own += pm_pinned_cache_return(pm_tcache->pinned);
        pm_tcache_return(pm_tcache);
    }
    uint64_t others = take_from_others();
    pm_remote_drain_all();
    uint64_t slabs = pm_arenas_drop_empty();
    bool room = pm_room_take_back();
    bool any = pm_extent_cache_trim() || own || others || slabs || room;
    count(&pm_take_back_counters.times, any);
    errno = saved;
    return any;
}
