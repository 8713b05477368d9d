// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Computes Ackermann's function again and again. Each evaluation allocates six caches of 600 bytes
// for arguments and values of the recursion.
#include "bench.h"

enum { CACHES = 6, CACHE_BYTES = 600, ENTRIES = CACHE_BYTES / sizeof(uint32_t) };

static uint64_t evaluations = 1500000;

// caches[m][n] is 1 + the value of (m, n), or 0 while it is not known. The last two caches only
// record a trace of the recursion.
static uint32_t ackermann(uint32_t *caches[], uint32_t m, uint32_t n) {
    if (n < ENTRIES && caches[m][n])
        return caches[m][n] - 1;
    uint32_t value = m == 0   ? n + 1
                     : n == 0 ? ackermann(caches, m - 1, 1)
                              : ackermann(caches, m - 1, ackermann(caches, m, n - 1));
    if (n < ENTRIES)
        caches[m][n] = value + 1;
    caches[CACHES - 2][value % ENTRIES] = m;
    caches[CACHES - 1][value % ENTRIES] = n;
    return value;
}

static uint64_t work(unsigned worker) {
    uint64_t random = bench_stream(worker), answer = 0, mine = bench_part(evaluations, worker);
    for (uint64_t i = 0; i < mine; i++) {
        uint32_t *caches[CACHES];
        for (unsigned c = 0; c < CACHES; c++)
            caches[c] = memset(bench_block(CACHE_BYTES), 0, CACHE_BYTES);
        answer += ackermann(caches, 2, (uint32_t)bench_below(&random, 5));
        for (unsigned c = 0; c < CACHES; c++)
            bench_free(caches[c]);
    }
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'n', "evaluations, all threads together", &evaluations}, {0}};
    bench_begin(argc, argv, NULL, options);
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(2 * CACHES * evaluations, seconds, answer);
}
