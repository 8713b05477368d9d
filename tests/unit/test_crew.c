// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A crew of markers on a graph that is no heap: everything that is reached is scanned, by any
// number of threads, with room for many ranges or for few. Each node is a range of one byte.
#include "marking/crew.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

#define NODES 200000u
#define FAN 3u

static uint32_t edge[NODES][FAN];
static char bytes[NODES]; // the marks, and where the crew prefetches
static _Atomic uint32_t scans, dropped;
static struct pm_crew crew;
static pthread_t thread[PM_CREW_MAX];
static unsigned refuse_from; // threads from this number on cannot be started

static void push(struct pm_marker *m, uint32_t i) {
    if (__atomic_exchange_n(&bytes[i], 1, __ATOMIC_RELAXED))
        return;
    while (!pm_crew_push(m, i, 1))
        if (!pm_crew_give(m)) {
            atomic_fetch_add(&dropped, 1);
            return;
        }
}

static void scan(struct pm_marker *m, struct pm_range r) {
    atomic_fetch_add_explicit(&scans, 1, memory_order_relaxed);
    m->scanned++;
    for (unsigned i = 0; i < FAN; i++)
        push(m, edge[r.offset][i]);
}

static void work(struct pm_marker *m) { pm_crew_work_off(m, bytes, scan); }

static void *follow(void *m) {
    pm_crew_follow(&crew, (unsigned)((struct pm_marker *)m - crew.marker));
    return NULL;
}

static bool start(unsigned i) {
    return i < refuse_from && pthread_create(&thread[i], NULL, follow, &crew.marker[i]) == 0;
}

static void join(unsigned i) { pthread_join(thread[i], NULL); }

// How many nodes the walk from node 0 reaches, by a stack of its own.
static uint32_t walk(void) {
    static uint32_t todo[NODES];
    static bool seen[NODES];
    uint32_t depth = 1, count = 0;
    memset(seen, 0, sizeof seen);
    seen[todo[0] = 0] = true;
    while (depth) {
        const uint32_t *to = edge[todo[--depth]];
        count++;
        for (unsigned i = 0; i < FAN; i++)
            if (!seen[to[i]]) {
                seen[to[i]] = true;
                todo[depth++] = to[i];
            }
    }
    return count;
}

static void run(unsigned markers, uint32_t room, uint32_t pool, uint32_t reached) {
    void *memory = aligned_alloc(4096, (pm_crew_bytes(markers, room, pool) + 4095) & ~4095ul);
    memset(bytes, 0, sizeof bytes);
    scans = dropped = 0;
    crew = (struct pm_crew){.work = work, .start = start, .join = join};
    pm_crew_make(&crew, memory, markers, room, pool);
    push(crew.marker, 0);
    pm_crew_run(&crew);
    uint32_t marked = 0, scanned = 0;
    for (uint32_t i = 0; i < NODES; i++)
        marked += (uint32_t)bytes[i];
    for (unsigned i = 0; i < markers; i++)
        scanned += (uint32_t)crew.marker[i].scanned;
    CHECK_EQ(scans, scanned);
    CHECK_EQ(marked, scans + dropped); // each once, unless there was no room
    CHECK(pool < NODES || (marked == reached && dropped == 0));
    CHECK_EQ(crew.pooled, 0);
    free(memory);
}

static void test_all(void) {
    static const unsigned markers[] = {1, 2, 3, 8, 64};
    for (uint32_t i = 0; i < NODES; i++)
        for (unsigned f = 0; f < FAN; f++) // the last tenth is not reached
            edge[i][f] = (uint32_t)((i * 2654435761ull + f * 40503) % (NODES / 10 * 9));
    edge[0][0] = 1;
    uint32_t reached = walk();
    CHECK(reached > NODES / 10 && reached < NODES);
    for (unsigned i = 0; i < sizeof markers / sizeof *markers; i++)
        for (refuse_from = 1; refuse_from <= 64; refuse_from *= 8) {
            run(markers[i], 16, NODES, reached);
            run(markers[i], 32768, NODES, reached);
            run(markers[i], 16, 16, reached);
        }
}

int main(void) {
    RUN(all);
    return CHECK_DONE();
}
