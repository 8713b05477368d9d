// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Allocations and frees apart: all threads allocate their share of the blocks, then all free it.
// Between these phases they wait for each other. The mode says which of them is timed. The first
// round only warms up, so that its page faults are not measured.
#include "bench.h"

static const char *const modes[] = {"alloc", "free", NULL};
static uint64_t rounds = 4, blocks = 100000, bytes = 64;
static unsigned timed;        // the phase that the mode names
static double seconds;        // of that phase, by the clock of worker 0
static pthread_barrier_t all; // between phases

// Starts or ends a phase, for all threads at once. mark: whether what follows is timed.
static double instant(unsigned worker, bool mark) {
    pthread_barrier_wait(&all);
    if (bench_marked) {
        if (worker == 0)
            bench_mark(mark ? BENCH_ON : BENCH_OFF);
        pthread_barrier_wait(&all);
    }
    return bench_clock();
}

static uint64_t work(unsigned worker) {
    uint64_t mine = bench_part(blocks, worker), answer = 0;
    void **held = bench_table(mine * sizeof *held);
    for (uint64_t round = 0; round <= rounds; round++) {
        double from = instant(worker, round > 0 && timed == 0);
        for (uint64_t i = 0; i < mine; i++)
            held[i] = bench_new(bytes, (uint32_t)(round + i));
        double between = instant(worker, round > 0 && timed == 1);
        for (uint64_t i = 0; i < mine; i++)
            answer += bench_drop(held[i]);
        double to = instant(worker, false);
        if (worker == 0 && round > 0)
            seconds += timed == 0 ? between - from : to - between;
    }
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {{'r', "rounds after the first one", &rounds},
                                                  {'n', "blocks, all threads together", &blocks},
                                                  {'b', "bytes of a block, at least 16", &bytes},
                                                  {0}};
    timed = bench_begin(argc, argv, modes, options);
    if (bytes < 16)
        bench_exit(BENCH_USAGE, "-b is at least 16");
    pthread_barrier_init(&all, NULL, (unsigned)bench_threads);
    uint64_t answer = 0;
    bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(rounds * blocks, seconds, answer);
}
