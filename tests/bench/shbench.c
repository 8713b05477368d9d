// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Batches of blocks of 64 to 1000 bytes; small blocks are the most frequent. By turns a batch is
// freed in the order of allocation, in the opposite order, and every third block first.
#include "bench.h"

enum { SMALLEST = 64, LARGEST = 1000, BATCH = 120 };

static uint64_t iterations = 300000;

// The square of a uniform number in 0..1: half of all sizes are in the lowest quarter.
static size_t size_of(uint64_t random) {
    uint64_t u = random >> 48;
    return SMALLEST + (LARGEST - SMALLEST) * (u * u >> 16) / 65535;
}

static uint64_t free_batch(void **batch, unsigned stride, bool backwards) {
    uint64_t answer = 0;
    for (unsigned first = 0; first < stride; first++)
        for (unsigned i = first; i < BATCH; i += stride)
            answer += bench_drop(batch[backwards ? BATCH - 1 - i : i]);
    return answer;
}

static uint64_t work(unsigned worker) {
    uint64_t random = bench_stream(worker), answer = 0, mine = bench_part(iterations, worker);
    void *batch[BATCH];
    for (uint64_t i = 0; i < mine; i++) {
        for (unsigned j = 0; j < BATCH; j++)
            batch[j] = bench_new(size_of(bench_random(&random)), (uint32_t)i + j);
        answer += free_batch(batch, i % 3 == 2 ? 3 : 1, i % 3 == 1);
    }
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'i', "iterations, all threads together", &iterations}, {0}};
    bench_begin(argc, argv, NULL, options);
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(2 * iterations * BATCH, seconds, answer);
}
