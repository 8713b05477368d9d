// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Locks taken and cache lines that move between threads, for 1 to 256 threads, whatever cores the
// machine has. One thread plays the part of all of them: it takes their caches by turns, one step
// of the workload each, so lines move as often as they can. There is an arena for each, and with
// two threads or more there are two nodes (PMALLOC_TOPOLOGY). Linked with
// the allocator twice: with lines.c, which counts, and without (contention-plain), for callgrind to
// count instructions.
//   contention WORKLOAD THREADS [ROUNDS]
// prints a line for each kind of operation, after some rounds to warm up:
//   malloc|local|remote KEY=N...
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/nodes.h"
#include "blocks/kinds.h"
#include "lines.h"
#include "media/persist.h"
#include "preload/pmalloc.h"
#include "process/entry.h"
#include "process/start.h"
#include "temporary_heap.h"

#ifdef PM_PLAIN
struct lines_counts lines_counts[LINES_OPERATIONS];
void lines_begin(unsigned threads, unsigned nodes) { (void)threads, (void)nodes; }
void lines_enter(unsigned thread, enum lines_operation operation) {
    (void)thread;
    lines_counts[operation].operations++;
}
void lines_leave(void) {}
void lines_zero(void) { memset(lines_counts, 0, sizeof lines_counts); }
void lines_drain(void) {}
#endif

enum { NODES = 2, HELD = 5000, QUEUE = 1024, BATCH = 120 };

struct player {
    struct pm_tcache *cache;
    void **held;
    unsigned at; // how far it is in its workload
    uint64_t random;
};

static struct player players[LINES_THREADS];
static unsigned count;
static unsigned rounds = 1;

unsigned __wrap_pm_os_cores(void);
unsigned __wrap_pm_os_cores(void) { return count; }
// Time stands still, so that nothing decays in one run and not in the next.
uint64_t __wrap_pm_os_now_ms(void);
uint64_t __wrap_pm_os_now_ms(void) { return 1; }

// ---- operations ---------------------------------------------------------------------------------

static unsigned number_of(const struct player *p) { return (unsigned)(p - players); }

// These two and the allocator below them are what callgrind looks at.
__attribute__((noinline)) static void *measured_malloc(size_t size) { return pm_malloc(size); }
__attribute__((noinline)) static void measured_free(void *block) { pm_free(block); }

// As lines.c deals the threads to nodes.
static unsigned node_of(const struct player *p) {
    return number_of(p) / ((count + NODES - 1) / NODES);
}

static void play(struct player *p) {
    pm_tcache_use(p->cache);
    pm_node_move(node_of(p));
}

static void *pointer_free(size_t size) { return pmalloc_alloc(size, 0, PMALLOC_POINTER_FREE); }
static void *pinned(size_t size) { return pmalloc_alloc(size, 0, PMALLOC_PINNED); }

static void *allocate_by(void *by(size_t), struct player *p, size_t size) {
    play(p);
    lines_enter(number_of(p), LINES_MALLOC);
    void *block = by(size);
    lines_leave();
    if (!block) {
        fprintf(stderr, "contention: out of memory\n");
        exit(1);
    }
    return block;
}

static void *allocate(struct player *p, size_t size) {
    return allocate_by(measured_malloc, p, size);
}

// A large block belongs to nobody; it counts as local.
static bool is_remote(const struct player *p, const void *block) {
    const struct pm_vslab *v = &pm_vslabs[pm_slab_of(block)];
    return v->size_class && pm_arena_place(v->arena) != p->cache->arena->number;
}

static void release(struct player *p, void *block) {
    play(p);
    lines_enter(number_of(p), is_remote(p, block) ? LINES_FREE_REMOTE : LINES_FREE_LOCAL);
    measured_free(block);
    lines_leave();
}

static uint64_t random_below(struct player *p, uint64_t limit) {
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return (p->random >> 32) * limit >> 32;
}

// ---- workloads ----------------------------------------------------------------------------------
//
// Each does one step of one thread: one operation, or two where a block replaces another.

static void pair_of(struct player *p, size_t size) {
    if (p->at ^= 1)
        p->held[0] = allocate(p, size);
    else
        release(p, p->held[0]);
}
static void pair(struct player *p) { pair_of(p, 64); }
static void large(struct player *p) { pair_of(p, 32 << 10); }

// Allocates `n` objects, then frees them all.
static void batch_by(void *by(size_t), struct player *p, unsigned n, size_t size) {
    if (p->at < n)
        p->held[p->at] = allocate_by(by, p, size);
    else
        release(p, p->held[p->at - n]);
    p->at = (p->at + 1) % (2 * n);
}
static void batch_of(struct player *p, unsigned n, size_t size) {
    batch_by(measured_malloc, p, n, size);
}
static void batch(struct player *p) { batch_of(p, 2000, 64); }
static void pointer_free_batch(struct player *p) { batch_by(pointer_free, p, 2000, 64); }
static void pinned_batch(struct player *p) { batch_by(pinned, p, 2000, 64); }
static void tiny(struct player *p) { batch_of(p, HELD, 16); }
static void threadtest(struct player *p) { batch_of(p, HELD, 64); }

// Half of all sizes are in the lowest quarter of 64 to 1000. Freed forwards, then backwards.
static void shbench(struct player *p) {
    unsigned at = p->at % BATCH, phase = p->at / BATCH;
    uint64_t u = random_below(p, 65536);
    if (phase % 2 == 0)
        p->held[at] = allocate(p, 64 + 936 * (u * u >> 16) / 65535);
    else
        release(p, p->held[phase == 1 ? at : BATCH - 1 - at]);
    p->at = (p->at + 1) % (4 * BATCH);
}

static void replace(struct player *p, unsigned slots, size_t from, size_t to) {
    unsigned victim = (unsigned)random_below(p, slots);
    if (p->held[victim])
        release(p, p->held[victim]);
    p->held[victim] = allocate(p, from + random_below(p, to - from + 1));
}

// Every so often all threads hand what they hold to their neighbours.
static void hand_on(struct player *p, unsigned every) {
    if (++p->at % every || p != &players[count - 1])
        return;
    void **first = players[0].held;
    for (unsigned i = 0; i + 1 < count; i++)
        players[i].held = players[i + 1].held;
    players[count - 1].held = first;
}

// As tests/bench/larson.c: now and then a thread ends, and a new one goes on with its blocks. That
// itself is not counted.
static void larson(struct player *p) {
    replace(p, 1000, 64, 256);
    if (++p->at % 1000)
        return;
    pm_tcache = &pm_no_tcache;
    pm_tcache_destroy(p->cache);
    p->cache = pm_tcache_create();
    if (!p->cache)
        exit(1);
}

// Nearly every free is of another thread's block.
static void handed(struct player *p) {
    replace(p, 1000, 64, 256);
    hand_on(p, 500);
}

// All threads together hold about as many blocks, however many there are.
static unsigned large_slots(void) { return count < 128 ? 512 / count : 4; }

static void larson_large(struct player *p) {
    replace(p, large_slots(), 32 << 10, 512 << 10);
    hand_on(p, 500);
}

// The sum of eight numbers stands for a Poisson distribution from 32 to 512 KB.
static void dbmstest(struct player *p) {
    size_t size = 32 << 10;
    for (unsigned i = 0; i < 8; i++)
        size += random_below(p, 60 << 10);
    unsigned slots = large_slots(), kept = slots / 10 + 1;
    if (p->at < slots) {
        if (!p->held[p->at])
            p->held[p->at] = allocate(p, size);
    } else {
        unsigned victim = p->at - slots;
        if (victim >= kept) {
            release(p, p->held[victim]);
            p->held[victim] = NULL;
        }
    }
    p->at = (p->at + 1) % (2 * slots);
}

// The producers are on the first node, the consumers on the second.
static void prodcon(struct player *p) {
    unsigned half = count / 2, self = number_of(p);
    if (half == 0) {
        pair(p);
    } else if (self < half) {
        p->held[p->at % QUEUE] = allocate(p, 64);
        p->at++;
    } else if (self < 2 * half) {
        struct player *producer = &players[self - half];
        void **slot = &producer->held[p->at % QUEUE];
        if (p->at + QUEUE / 2 < producer->at) {
            release(p, *slot);
            p->at++;
        }
    }
}

static const struct workload {
    const char *name;
    void (*step)(struct player *p);
    unsigned steps; // of a round and a thread
} workloads[] = {
    {"pair", pair, 4000},
    {"batch", batch, 8000},
    {"pointer-free", pointer_free_batch, 8000},
    {"pinned", pinned_batch, 4000},
    {"threadtest", threadtest, 20000},
    {"tiny", tiny, 20000},
    {"shbench", shbench, 4800},
    {"larson", larson, 4000},
    {"handed", handed, 4000},
    {"prodcon", prodcon, 6000},
    {"large", large, 1000},
    {"larson-large", larson_large, 500},
    {"dbmstest", dbmstest, 2000},
};

// ---- all of it ----------------------------------------------------------------------------------

// By then the first slabs of the bins have all their pages (blocks/holes.h), and nearly all thread
// caches have grown as far as the workload needs.
#define WARM_UP 16u

static void run_round(const struct workload *w) {
    for (unsigned step = 0; step < w->steps; step++)
        for (unsigned i = 0; i < count; i++)
            w->step(&players[i]);
}

static void report(void) {
    static const char *const names[] = {"malloc", "local", "remote"};
    for (unsigned i = 0; i < LINES_OPERATIONS; i++) {
        const struct lines_counts *c = &lines_counts[i];
        const struct {
            const char *name;
            uint64_t value;
        } figures[] = {{"ops", c->operations},
                       {"own", c->own},
                       {"other", c->other},
                       {"extent", c->extent},
                       {"rest", c->rest},
                       {"handed", c->handed},
                       {"handed_far", c->handed_far},
                       {"writes", c->writes},
                       {"writes_far", c->writes_far},
                       {"moved", c->moved[LINES_UNLOCKED]},
                       {"moved_far", c->moved_far[LINES_UNLOCKED]},
                       {"bin_moved", c->moved[LINES_IN_BIN]},
                       {"bin_moved_far", c->moved_far[LINES_IN_BIN]},
                       {"extent_moved", c->moved[LINES_IN_EXTENT]},
                       {"extent_moved_far", c->moved_far[LINES_IN_EXTENT]},
                       {"drains", c->drains}};
        printf("%s", names[i]);
        for (unsigned f = 0; f < sizeof figures / sizeof *figures; f++)
            printf(" %s=%llu", figures[f].name, (unsigned long long)figures[f].value);
        printf("\n");
    }
}

static void no_flush(const void *at, size_t size) { (void)at, (void)size; }

static void *run(void *argument) {
    const struct workload *w = argument;
    pm_process_start();
    pm_persist = (struct pm_persist_ops){no_flush, lines_drain};
    lines_begin(count, count > 1 ? NODES : 1);
    for (unsigned i = 0; i < count; i++) {
        struct player *p = &players[i];
        p->held = calloc(HELD, sizeof *p->held);
        p->random = i + 1;
        pm_node_move(node_of(p));
        p->cache = pm_tcache_create();
        if (!p->held || !p->cache)
            exit(1);
    }
    for (unsigned i = 0; i < WARM_UP; i++)
        run_round(w);
    lines_zero();
    for (unsigned i = 0; i < rounds; i++)
        run_round(w);
    report();
    pm_tcache = &pm_no_tcache;
    return NULL;
}

static int usage(void) {
    fprintf(stderr, "usage: contention WORKLOAD THREADS [ROUNDS], of up to %u threads; WORKLOAD:",
            LINES_THREADS);
    for (unsigned i = 0; i < sizeof workloads / sizeof *workloads; i++)
        fprintf(stderr, " %s", workloads[i].name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv) {
    const struct workload *w = NULL;
    for (unsigned i = 0; argc > 1 && i < sizeof workloads / sizeof *workloads; i++)
        if (strcmp(argv[1], workloads[i].name) == 0)
            w = &workloads[i];
    count = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
    rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 1;
    if (!w || argc > 4 || count < 1 || count > LINES_THREADS)
        return usage();
    char topology[16];
    if (!temporary_heap_name("contention"))
        return 2;
    if (count > 1) {
        snprintf(topology, sizeof topology, "%ux%u", NODES, (count + NODES - 1) / NODES);
        setenv("PMALLOC_TOPOLOGY", topology, 1);
    }
    pthread_t id; // its stack and its variables lie together, so lines.c can leave them out
    if (pthread_create(&id, NULL, run, (void *)w) != 0)
        return 2;
    pthread_join(id, NULL);
    return temporary_heap_remove() ? 0 : 1;
}
