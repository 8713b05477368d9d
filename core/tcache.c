// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tcache.h"

#include "os.h"

struct pm_tcache pm_no_tcache;
__thread struct pm_tcache *pm_tcache __attribute__((tls_model("initial-exec"))) = &pm_no_tcache;
struct pm_lock pm_tcache_lock;

#define FIRST_FILL 8

static struct pm_tcache *live, *spare;
static unsigned live_count;
bool pm_tcache_lost;

// One mapping for a cache and its stacks, touched as far as it is used.
static struct pm_tcache *map_new(void) {
    size_t slots = 0;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        slots += pm_classes[cls].tcache_cap;
    struct pm_tcache *t = pm_os_reserve(sizeof *t + slots * sizeof(void *));
    if (!t)
        return NULL;
    void **slot = (void **)(t + 1);
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        t->stack[cls].slot = slot;
        t->stack[cls].cap = pm_classes[cls].tcache_cap;
        slot += pm_classes[cls].tcache_cap;
    }
    t->tag = pm_tag;
    t->base = pm_base;
    t->granules = PM_GRANULES;
    return t;
}

static void link_live(struct pm_tcache *t) {
    t->prev = NULL;
    t->next = live;
    if (live)
        live->prev = t;
    live = t;
    live_count++;
}

static void unlink_live(struct pm_tcache *t) {
    *(t->prev ? &t->prev->next : &live) = t->next;
    if (t->next)
        t->next->prev = t->prev;
    live_count--;
}

struct pm_tcache *pm_tcache_create(void) {
    pm_lock(&pm_tcache_lock, PM_RANK_THREADS);
    struct pm_tcache *t = spare;
    if (t)
        spare = t->next;
    else
        t = map_new();
    if (t) { // whole once it is listed: a fork may leave it there without its thread
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            t->fill[cls] = FIRST_FILL;
        t->arena = pm_arena_join();
        link_live(t);
    }
    pm_unlock(&pm_tcache_lock, PM_RANK_THREADS);
    return t;
}

bool pm_tcache_free_to_use(const struct pm_tcache *t, unsigned cls) {
    return __atomic_load_n(&t->stack[cls].n, __ATOMIC_RELAXED) < PM_STACK_BUSY;
}

void pm_tcache_flush(struct pm_tcache *t) {
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        struct pm_stack *s = &t->stack[cls];
        if (!pm_tcache_free_to_use(t, cls))
            continue;
        pm_arena_flush(cls, s->slot, (unsigned)pm_stack_seize(s));
        pm_stack_leave(s, 0);
    }
}

void pm_tcache_destroy(struct pm_tcache *t) {
    // A cancelled thread may have left a stack in the middle of a request: its block at most is lost.
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        pm_stack_leave(&t->stack[cls], pm_stack_count(&t->stack[cls]));
    pm_tcache_flush(t);
    pm_lock(&pm_tcache_lock, PM_RANK_THREADS);
    pm_arena_leave(t->arena);
    unlink_live(t);
    t->next = spare;
    spare = t;
    pm_unlock(&pm_tcache_lock, PM_RANK_THREADS);
}

bool pm_tcache_refill(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = &t->stack[cls];
    unsigned want = t->fill[cls];
    unsigned most = s->cap / 2;
    if (want > most)
        want = most;
    pm_stack_seize(s);
    unsigned got = pm_arena_fill(t->arena, cls, s->slot, want);
    t->fill[cls] = (uint16_t)(want * 2);
    // The stack gives from its end: turn it round, so that blocks leave by rising address.
    for (unsigned i = 0; i < got / 2; i++) {
        void *low = s->slot[i];
        s->slot[i] = s->slot[got - 1 - i];
        s->slot[got - 1 - i] = low;
    }
    pm_stack_leave(s, got);
    return got > 0;
}

void pm_tcache_trim(struct pm_tcache *t, unsigned cls) {
    struct pm_stack *s = &t->stack[cls];
    unsigned n = (unsigned)pm_stack_seize(s), out = n / 2, keep = n - out;
    pm_arena_flush(cls, s->slot, out);
    for (unsigned i = 0; i < keep; i++)
        s->slot[i] = s->slot[out + i];
    pm_stack_leave(s, keep);
}

unsigned pm_tcache_live(void) {
    pm_lock(&pm_tcache_lock, PM_RANK_THREADS);
    unsigned count = live_count;
    pm_unlock(&pm_tcache_lock, PM_RANK_THREADS);
    return count;
}

uint64_t pm_tcache_held(unsigned cls) {
    uint64_t held = 0;
    pm_lock(&pm_tcache_lock, PM_RANK_THREADS);
    for (struct pm_tcache *t = live; t; t = t->next)
        held += pm_stack_count(&t->stack[cls]);
    pm_unlock(&pm_tcache_lock, PM_RANK_THREADS);
    return held;
}

// Their threads may have stood anywhere: within a flush, half of whose blocks had gone back and been handed out
// anew, or storing while fork copied the memory page by page. So what the caches name cannot be believed, and is lost
// to the child; a block that went to a slab twice would have two owners.
void pm_tcache_orphans(struct pm_tcache *mine) {
    for (struct pm_tcache *t = live, *next; t; t = next) {
        next = t->next;
        if (t == mine)
            continue;
        pm_tcache_lost = true;
        for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
            pm_stack_leave(&t->stack[cls], 0);
        t->later_count = 0;
        pm_arena_leave(t->arena);
        unlink_live(t);
        t->next = spare;
        spare = t;
    }
}
