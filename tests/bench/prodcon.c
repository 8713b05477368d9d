// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pairs of threads: one allocates objects, the other frees them. So every block is freed by another
// thread.
#include <sched.h>

#include "bench.h"

enum { RING = 1024 };

// The queue of a pair. Only the producer writes `head`, only the consumer writes `tail`.
static struct ring {
    _Alignas(64) uint64_t head;
    _Alignas(64) uint64_t tail;
    _Alignas(64) void *slots[RING];
} rings[BENCH_THREADS / 2];

static uint64_t objects = 12000000, bytes = 64, local, pairs;

// Of each hundred objects the producer frees `local` itself.
static uint64_t produce(struct ring *r, uint64_t count) {
    uint64_t answer = 0;
    for (uint64_t i = 0; i < count; i++) {
        void *block = bench_new(bytes, (uint32_t)i);
        if (i % 100 < local) {
            answer += bench_drop(block);
            block = NULL;
        }
        while (i - __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE) == RING)
            sched_yield();
        r->slots[i % RING] = block;
        __atomic_store_n(&r->head, i + 1, __ATOMIC_RELEASE);
    }
    return answer;
}

static uint64_t consume(struct ring *r, uint64_t count) {
    uint64_t answer = 0;
    for (uint64_t i = 0; i < count; i++) {
        while (__atomic_load_n(&r->head, __ATOMIC_ACQUIRE) == i)
            sched_yield();
        void *block = r->slots[i % RING];
        __atomic_store_n(&r->tail, i + 1, __ATOMIC_RELEASE);
        answer += block ? bench_drop(block) : 0;
    }
    return answer;
}

static uint64_t work(unsigned worker) {
    struct ring *r = &rings[worker / 2];
    uint64_t count = objects / pairs;
    return worker % 2 ? consume(r, count) : produce(r, count);
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {{'n', "objects, all pairs together", &objects},
                                                  {'b', "bytes of an object, at least 16", &bytes},
                                                  {'l', "percentage freed by the producer", &local},
                                                  {0}};
    bench_begin(argc, argv, NULL, options);
    if (bytes < 16)
        bench_exit(BENCH_USAGE, "-b is at least 16");
    pairs = (bench_threads + 1) / 2;
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)pairs * 2, work, &answer);
    return bench_report(2 * (objects / pairs) * pairs, seconds, answer);
}
