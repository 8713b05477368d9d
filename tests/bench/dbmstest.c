// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The buffers of a database. Each iteration allocates blocks of 32 to 512 KiB; their sizes are
// Poisson distributed in steps of 32 KiB. Then it frees nine in ten of all blocks, at random.
#include <math.h>

#include "bench.h"

enum { STEP = 32 << 10, STEPS = 16, MEAN = 4 };

static uint64_t iterations = 80, blocks = 1000;
static uint64_t threshold[STEPS]; // a random number below threshold[k] means k + 1 steps
static uint64_t ops[BENCH_THREADS];

static void make_thresholds(void) {
    double p = exp(-MEAN), sum = 0;
    for (unsigned k = 0; k < STEPS; k++) {
        sum += p;
        threshold[k] = (uint64_t)(sum * 4294967296.0);
        p *= (double)MEAN / (k + 1);
    }
    threshold[STEPS - 1] = 1ULL << 32;
}

static size_t size_of(uint64_t random) {
    unsigned k = 0;
    while (random >> 32 >= threshold[k])
        k++;
    return (size_t)(k + 1) * STEP;
}

static uint64_t work(unsigned worker) {
    uint64_t random = bench_stream(worker), mine = bench_part(blocks, worker);
    uint64_t answer = 0, count = 0, done = 0;
    void **held = bench_table(2 * mine * sizeof *held);
    for (uint64_t i = 0; i < iterations; i++) {
        for (uint64_t j = 0; j < mine; j++)
            held[count++] = bench_new(size_of(bench_random(&random)), (uint32_t)(i + j));
        done += mine;
        uint64_t rest = i + 1 < iterations ? count / 10 : 0;
        for (done += count - rest; count > rest;) {
            uint64_t victim = bench_below(&random, count);
            answer += bench_drop(held[victim]);
            held[victim] = held[--count];
        }
    }
    ops[worker] = done;
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'i', "iterations", &iterations}, {'n', "blocks, all threads together", &blocks}, {0}};
    bench_begin(argc, argv, NULL, options);
    make_thresholds();
    uint64_t answer = 0, total = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    for (unsigned i = 0; i < bench_threads; i++)
        total += ops[i];
    return bench_report(total, seconds, answer);
}
