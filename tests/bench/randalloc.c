// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Rounds of allocations of random size, 64 bytes to 128 KiB, followed by as many frees in random
// order. Sizes are uniform, or binomial with a success probability of 0.01 (mean 1.4 KiB) or 0.7
// (mean 90 KiB).
#include <math.h>

#include "bench.h"

enum { LEAST = 64, MOST = 128 << 10, STEP = 64, TRIALS = (MOST - LEAST) / STEP };

static const char *const modes[] = {"uniform", "binomial-small", "binomial-large", NULL};
static const struct {
    double probability; // 0 for the uniform distribution
    uint64_t blocks;
} mixes[] = {{0, 4000}, {0.01, 120000}, {0.7, 2000}};

static uint64_t rounds = 10, blocks;
static double probability, cumulated[TRIALS + 1];

static void make_binomial(void) {
    double sum = 0;
    for (unsigned k = 0; k <= TRIALS; k++) {
        double logarithm = lgamma(TRIALS + 1.0) - lgamma(k + 1.0) - lgamma(TRIALS - k + 1.0) +
                           k * log(probability) + (TRIALS - k) * log1p(-probability);
        cumulated[k] = sum += exp(logarithm);
    }
    cumulated[TRIALS] = 1;
}

static size_t size_of(uint64_t *random) {
    if (probability == 0)
        return LEAST + bench_below(random, MOST - LEAST + 1);
    double u = (double)(bench_random(random) >> 11) * 0x1p-53;
    unsigned low = 0, high = TRIALS;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (u < cumulated[middle])
            high = middle;
        else
            low = middle + 1;
    }
    return LEAST + (size_t)low * STEP;
}

static uint64_t work(unsigned worker) {
    uint64_t random = bench_stream(worker), mine = bench_part(blocks, worker), answer = 0;
    void **held = bench_table(mine * sizeof *held);
    for (uint64_t r = 0; r < rounds; r++) {
        for (uint64_t i = 0; i < mine; i++)
            held[i] = bench_new(size_of(&random), (uint32_t)(r + i));
        for (uint64_t count = mine; count > 0;) {
            uint64_t victim = bench_below(&random, count);
            answer += bench_drop(held[victim]);
            held[victim] = held[--count];
        }
    }
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'r', "rounds", &rounds},
        {'n', "blocks per round, all threads together; 0: chosen by the sizes", &blocks},
        {0}};
    unsigned mode = bench_begin(argc, argv, modes, options);
    probability = mixes[mode].probability;
    blocks = blocks ? blocks : mixes[mode].blocks;
    if (probability > 0)
        make_binomial();
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(2 * rounds * blocks, seconds, answer);
}
