// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Each thread allocates its share of the objects, then frees them all, again and again.
#include "bench.h"

static uint64_t iterations = 250, objects = 100000, bytes = 64;

static uint64_t work(unsigned worker) {
    uint64_t mine = bench_part(objects, worker), answer = 0;
    void **held = bench_table(mine * sizeof *held);
    for (uint64_t i = 0; i < iterations; i++) {
        for (uint64_t j = 0; j < mine; j++)
            held[j] = bench_new(bytes, (uint32_t)(i + j));
        for (uint64_t j = 0; j < mine; j++)
            answer += bench_drop(held[j]);
    }
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {{'i', "iterations", &iterations},
                                                  {'n', "objects, all threads together", &objects},
                                                  {'b', "bytes of an object, at least 16", &bytes},
                                                  {0}};
    bench_begin(argc, argv, NULL, options);
    if (bytes < 16)
        bench_exit(BENCH_USAGE, "-b is at least 16");
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(2 * iterations * objects, seconds, answer);
}
