// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Fragmentation of large blocks. Fills memory with blocks of 64 KiB. Then it frees every other
// block until half of the bytes are free, and allocates as many bytes in blocks of double the size.
// It goes on until a block is a sixteenth of the memory. An allocator that cannot use the holes
// needs ever more memory. The figure is peak memory divided by peak live bytes. With -e the memory
// is bounded by whoever starts it, and the first allocation that fails is the end: a line says how
// long blocks became, and how many there were after the first filling.
#include "bench.h"

#include <signal.h>
#include <unistd.h>

static uint64_t live_limit = 256 << 20, first_size = 64 << 10, repeats = 1, ends;

struct blocks {
    void **at;
    uint64_t count, live, answer, ops, longest, made;
    double start;
};

static struct blocks blocks;
static bool dropping; // what ends the program there is no want of memory

// With -e: how far it got. dprintf allocates nothing, and there may be no memory for what a program
// does at its end.
_Noreturn static void report_end(bool full, int number) {
    const struct blocks *b = &blocks;
    dprintf(STDOUT_FILENO, "full=%d longest=%llu allocations=%llu signal=%d\n", full,
            (unsigned long long)b->longest, (unsigned long long)b->made, number);
    dprintf(STDOUT_FILENO, "answer=%016llx ops=%llu seconds=%.6f\n", (unsigned long long)b->answer,
            (unsigned long long)b->ops, bench_clock() - b->start);
    _exit(0);
}

// Some allocators end the program where they cannot allocate.
static void on_signal(int number) {
    if (dropping)
        raise(number);
    else
        report_end(true, number);
}

static void on_exit_of(void) {
    if (!dropping)
        report_end(true, 0);
}

static void catch_ends(void) {
    atexit(on_exit_of);
    static const int numbers[] = {SIGABRT, SIGBUS, SIGSEGV};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

static void fill(struct blocks *b, size_t size) {
    while (b->live + size <= live_limit) {
        void *p = ends ? bench_malloc(size) : bench_block(size);
        if (!p)
            report_end(true, 0);
        b->at[b->count++] = bench_fill(p, size, (uint32_t)b->ops++);
        b->live += size;
        b->longest = size;
        b->made += size != first_size;
    }
    bench_live = b->live > bench_live ? b->live : bench_live;
}

static void drop(struct blocks *b, uint64_t i) {
    b->live -= bench_size(b->at[i]);
    dropping = true;
    b->answer += bench_drop(b->at[i]);
    dropping = false;
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
                                                  {'e', "1: end when memory is full", &ends},
                                                  {0}};
    bench_begin(argc, argv, NULL, options);
    if (first_size < 16 || live_limit < 16 * first_size)
        bench_exit(BENCH_USAGE, "-b is at least 16, and -l 16 times that");
    struct blocks *b = &blocks;
    b->at = bench_table((live_limit / first_size + 1) * sizeof *b->at);
    if (ends)
        catch_ends();
    b->start = bench_clock();
    for (uint64_t r = 0; r < repeats; r++) {
        fill(b, first_size);
        for (size_t size = 2 * first_size; size <= live_limit / 16; size *= 2) {
            while (b->live > live_limit / 2)
                thin(b, live_limit / 2);
            fill(b, size);
        }
        while (b->count) {
            drop(b, b->count - 1);
            b->count--;
        }
    }
    if (ends)
        report_end(false, 0);
    return bench_report(b->ops, bench_clock() - b->start, b->answer);
}
