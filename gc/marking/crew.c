// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "crew.h"

#include <string.h>

// ---- its memory ---------------------------------------------------------------------------------

static size_t bytes_of(unsigned markers, uint32_t room) {
    return markers * (sizeof(struct pm_marker) + room * sizeof(struct pm_range));
}

size_t pm_crew_bytes(unsigned markers, uint32_t room, uint32_t pool_room) {
    return bytes_of(markers, room) + pool_room * sizeof(struct pm_range);
}

void pm_crew_make(struct pm_crew *c, void *memory, unsigned markers, uint32_t room,
                  uint32_t pool_room) {
    c->marker = memory;
    c->markers = markers;
    c->room = room;
    c->parallel = false;
    pm_lock_init(&c->lock, PM_RANK_PROCESS);
    c->pool_room = pool_room;
    c->pooled = c->most_pooled = 0;
    c->pool = (struct pm_range *)(void *)((char *)memory + bytes_of(markers, room));
    struct pm_range *stacks = (struct pm_range *)(void *)(c->marker + markers);
    for (unsigned i = 0; i < markers; i++)
        c->marker[i] = (struct pm_marker){
            .crew = c, .stack = stacks + (size_t)i * room, .pause_at = UINT64_MAX};
}

// ---- sharing ------------------------------------------------------------------------------------

static void wake_idle(struct pm_crew *c) {
    atomic_fetch_add_explicit(&c->turn, 1, memory_order_relaxed);
    pm_futex_wake(&c->turn, (int)PM_CREW_MAX);
}

bool pm_crew_give(struct pm_marker *m) {
    struct pm_crew *c = m->crew;
    pm_lock(&c->lock);
    uint32_t give = (m->count + 1) / 2, room = c->pool_room - c->pooled;
    give = give < room ? give : room;
    memcpy(c->pool + c->pooled, m->stack, give * sizeof *m->stack);
    memmove(m->stack, m->stack + give, (m->count - give) * sizeof *m->stack);
    c->pooled += give;
    c->most_pooled = c->pooled > c->most_pooled ? c->pooled : c->most_pooled;
    m->count -= give;
    pm_unlock(&c->lock);
    if (give && c->parallel)
        wake_idle(c);
    return give > 0;
}

// Takes work from the pool, or waits for some. False: marking is done.
static bool take_shared(struct pm_marker *m) {
    struct pm_crew *c = m->crew;
    pm_lock(&c->lock);
    while (c->pooled == 0 && !c->done) {
        // This marker is among the idle ones until it has woken and holds the lock again, although
        // it may have been given work by then. That is harmless: a marker ends marking only after
        // it has found the pool empty.
        if (atomic_fetch_add_explicit(&c->idle, 1, memory_order_relaxed) + 1 == c->markers) {
            c->done = true;
            if (c->parallel)
                wake_idle(c);
            break;
        }
        uint32_t turn = atomic_load_explicit(&c->turn, memory_order_relaxed);
        pm_unlock(&c->lock);
        pm_futex_wait(&c->turn, turn);
        pm_lock(&c->lock);
        if (!c->done)
            atomic_fetch_sub_explicit(&c->idle, 1, memory_order_relaxed);
    }
    uint32_t get = c->room / 4 ? c->room / 4 : 1;
    get = c->pooled < get ? c->pooled : get;
    c->pooled -= get;
    memcpy(m->stack, c->pool + c->pooled, get * sizeof *m->stack);
    m->count = get;
    pm_unlock(&c->lock);
    return get > 0;
}

// ---- marking ------------------------------------------------------------------------------------

static void follow(struct pm_marker *m) {
    do
        m->crew->work(m);
    while (take_shared(m));
}

void pm_crew_follow(struct pm_crew *c, unsigned number) { follow(&c->marker[number]); }

void pm_crew_run(struct pm_crew *c) {
    unsigned started = 1;
    c->done = false;
    c->parallel = c->markers > 1;
    atomic_store_explicit(&c->idle, 0, memory_order_relaxed);
    while (started < c->markers && c->start(started))
        started++;
    if (started < c->markers) { // the threads that could not be started stay idle until the end
        pm_lock(&c->lock);
        atomic_fetch_add_explicit(&c->idle, c->markers - started, memory_order_relaxed);
        pm_unlock(&c->lock);
    }
    follow(&c->marker[0]);
    for (unsigned i = 1; i < started; i++)
        c->join(i);
    c->parallel = false;
    atomic_store_explicit(&c->idle, 0, memory_order_relaxed);
}
