// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How much memory an allocator needs after the sizes of requests have changed. Before: allocates
// FACTOR times LIVE bytes with one distribution of sizes, and frees blocks at random so that at
// most LIVE bytes are in use. Delete: frees a share of the blocks at random. After: the same as
// before, with the other distribution. The figure is peak memory divided by peak live bytes.
#include "bench.h"

struct sizes {
    unsigned from, to;
};

static const struct workload {
    struct sizes before;
    unsigned deleted; // percentage of the blocks
    struct sizes after;
} workloads[] = {
    {{100, 100}, 90, {130, 130}},
    {{100, 150}, 0, {200, 250}},
    {{100, 150}, 90, {200, 250}},
    {{100, 200}, 50, {1000, 2000}},
};

static const char *const modes[] = {"w1", "w2", "w3", "w4", NULL};
static const struct workload *workload;
static uint64_t live_limit = 64 << 20, factor = 5, after_factor;
static uint64_t peaks[BENCH_THREADS], ops[BENCH_THREADS];

struct population {
    void **blocks;
    uint64_t count, live, peak, random, answer, ops;
};

static void delete_one(struct population *p) {
    uint64_t victim = bench_below(&p->random, p->count);
    void *block = p->blocks[victim];
    p->blocks[victim] = p->blocks[--p->count];
    p->live -= bench_size(block);
    p->answer += bench_drop(block);
    p->ops++;
}

static void allocate(struct population *p, struct sizes sizes, uint64_t limit, uint64_t times) {
    uint64_t total = 0;
    while (total < times * limit) {
        size_t size = sizes.from + bench_below(&p->random, sizes.to - sizes.from + 1);
        while (p->live + size > limit)
            delete_one(p);
        p->blocks[p->count++] = bench_new(size, (uint32_t)p->ops);
        p->live += size;
        total += size;
        p->peak = p->live > p->peak ? p->live : p->peak;
        p->ops++;
    }
}

static uint64_t work(unsigned worker) {
    uint64_t limit = bench_part(live_limit, worker);
    struct population p = {.random = bench_stream(worker)};
    p.blocks = bench_table((limit / workload->before.from + 1) * sizeof *p.blocks);
    allocate(&p, workload->before, limit, factor);
    for (uint64_t rest = p.count - p.count * workload->deleted / 100; p.count > rest;)
        delete_one(&p);
    allocate(&p, workload->after, limit, after_factor ? after_factor : factor);
    while (p.count)
        delete_one(&p);
    peaks[worker] = p.peak;
    ops[worker] = p.ops;
    return p.answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'l', "most bytes in use", &live_limit},
        {'f', "so many times the bytes in use are allocated, before and after", &factor},
        {'a', "so many times after, if not 0", &after_factor},
        {0}};
    workload = &workloads[bench_begin(argc, argv, modes, options)];
    uint64_t answer = 0, total = 0;
    if (live_limit < 4096 * bench_threads)
        bench_exit(BENCH_USAGE, "-l is at least 4096 per thread");
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    for (unsigned i = 0; i < bench_threads; i++) {
        bench_live += peaks[i];
        total += ops[i];
    }
    return bench_report(total, seconds, answer);
}
