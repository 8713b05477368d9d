// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Fragmentation of large blocks. Fills memory with blocks of 64 KiB. Then it frees every other
// block until half of the bytes are free, and allocates as many bytes in blocks of double the size.
// It goes on until a block is a sixteenth of the memory. An allocator that cannot use the holes
// needs ever more memory. The figure is peak memory divided by peak live bytes.
#include "bench.h"

static uint64_t live_limit = 256 << 20, first_size = 64 << 10, repeats = 1;

struct blocks {
    void **at;
    uint64_t count, live, answer, ops;
};

static void fill(struct blocks *b, size_t size) {
    while (b->live + size <= live_limit) {
        b->at[b->count++] = bench_new(size, (uint32_t)b->ops++);
        b->live += size;
    }
    bench_live = b->live > bench_live ? b->live : bench_live;
}

static void drop(struct blocks *b, uint64_t i) {
    b->live -= bench_size(b->at[i]);
    b->answer += bench_drop(b->at[i]);
    b->at[i] = NULL;
    b->ops++;
}

// Frees every other block, the oldest first, while more than `limit` bytes are in use. Then closes
// the gaps in the array.
static void thin(struct blocks *b, uint64_t limit) {
    for (uint64_t i = 0; i < b->count && b->live > limit; i += 2)
        drop(b, i);
    uint64_t kept = 0;
    for (uint64_t i = 0; i < b->count; i++)
        if (b->at[i])
            b->at[kept++] = b->at[i];
    b->count = kept;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {{'l', "most bytes in use", &live_limit},
                                                  {'b', "bytes of the first blocks", &first_size},
                                                  {'r', "repeats", &repeats},
                                                  {0}};
    bench_begin(argc, argv, NULL, options);
    if (first_size < 16 || live_limit < 16 * first_size)
        bench_exit(BENCH_USAGE, "-b is at least 16, and -l 16 times that");
    struct blocks b = {.at = bench_table((live_limit / first_size + 1) * sizeof *b.at)};
    double start = bench_clock();
    for (uint64_t r = 0; r < repeats; r++) {
        fill(&b, first_size);
        for (size_t size = 2 * first_size; size <= live_limit / 16; size *= 2) {
            while (b.live > live_limit / 2)
                thin(&b, live_limit / 2);
            fill(&b, size);
        }
        while (b.count) {
            drop(&b, b.count - 1);
            b.count--;
        }
    }
    return bench_report(b.ops, bench_clock() - start, b.answer);
}
