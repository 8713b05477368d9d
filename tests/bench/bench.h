// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the benchmark programs share: options, random numbers, threads, time, blocks that check
// themselves, and the allocator. The allocator is whatever provides malloc and free: the C library,
// or a preloaded library. Where BENCH_ALLOCATOR names an adapter (README.md), the adapter's
// functions are the allocator.
//
// A program prints one line, "answer=HEX ops=N seconds=S ...". The answer depends only on the
// options, because it is the sum of the workers' shares. It depends neither on the allocator nor on
// the order in which threads run.
#ifndef BENCH_H
#define BENCH_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "marks.h"

enum { BENCH_THREADS = 256, BENCH_PAGE = 4096 };
enum { BENCH_WRONG = 1, BENCH_USAGE = 2 };

static void *(*bench_malloc)(size_t size) = malloc;
static void (*bench_free)(void *p) = free;

static const char *bench_name;
static uint64_t bench_threads = 1, bench_seed = 1;
static uint64_t bench_own;  // bytes of the program's own tables, which are not blocks
static uint64_t bench_live; // the most bytes that were in blocks at one time; 0: not counted

__attribute__((noreturn, format(printf, 2, 3))) static inline void
bench_exit(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", bench_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(status);
}

// ---- Random numbers: splitmix64.

static inline uint64_t bench_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t bench_random(uint64_t *state) {
    return bench_mix(*state += 0x9e3779b97f4a7c15u);
}

// Returns 0 to limit - 1.
static inline uint64_t bench_below(uint64_t *state, uint64_t limit) {
    return (uint64_t)((unsigned __int128)bench_random(state) * limit >> 64);
}

// The start of the worker's own sequence.
static inline uint64_t bench_stream(uint64_t worker) {
    return bench_mix(bench_seed * 0x9e3779b97f4a7c15u + worker + 1);
}

// ---- Memory.

// Zeroed memory for the program's own use. It does not come from the allocator, so that only blocks
// are measured.
static inline void *bench_table(size_t bytes) {
    void *p = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        bench_exit(BENCH_WRONG, "no memory for a table of %zu bytes", bytes);
    __atomic_fetch_add(&bench_own, bytes, __ATOMIC_RELAXED);
    return p;
}

static inline void *bench_block(size_t size) {
    void *p = bench_malloc(size);
    if (!p)
        bench_exit(BENCH_WRONG, "out of memory: %zu bytes", size);
    return p;
}

// Fills a block of at least 16 bytes. Its first and last words hold its size and key, and every
// page is touched.
static inline void *bench_fill(char *p, size_t size, uint32_t key) {
    uint64_t tag = (uint64_t)size << 32 | key, seal = bench_mix(tag);
    for (size_t at = BENCH_PAGE; at + 8 < size; at += BENCH_PAGE)
        p[at] = (char)key;
    memcpy(p, &tag, 8);
    memcpy(p + size - 8, &seal, 8);
    return p;
}

static inline void *bench_new(size_t size, uint32_t key) {
    return bench_fill(bench_block(size), size, key);
}

static inline size_t bench_size(const void *block) { return *(const uint64_t *)block >> 32; }

// Checks and frees a block. Returns its share of the answer.
static inline uint64_t bench_drop(void *block) {
    uint64_t tag, seal;
    memcpy(&tag, block, 8);
    memcpy(&seal, (char *)block + (tag >> 32) - 8, 8);
    if (seal != bench_mix(tag))
        bench_exit(BENCH_WRONG, "wrong: the block at %p lost its contents", block);
    bench_free(block);
    return seal;
}

// ---- Options and the adapter.

struct bench_option {
    char letter;
    const char *help;
    uint64_t *value; // the value; it holds the default at first
};

static inline bool bench_number(const char *text, uint64_t *value) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    end += shift != 0;
    *value = v << shift;
    return text[0] >= '0' && text[0] <= '9' && !*end && !errno && *value >> shift == v;
}

__attribute__((noreturn)) static inline void bench_usage(const char *const *modes,
                                                         const struct bench_option *options) {
    fprintf(stderr, "usage: %s", bench_name);
    for (unsigned i = 0; modes && modes[i]; i++)
        fprintf(stderr, "%s%s", i ? "|" : " ", modes[i]);
    fprintf(stderr, " [-t THREADS] [-s SEED]");
    for (; options->letter; options++)
        fprintf(stderr, "\n    [-%c N]  %s (%llu)", options->letter, options->help,
                (unsigned long long)*options->value);
    fputc('\n', stderr);
    exit(BENCH_USAGE);
}

static inline uint64_t *bench_option_of(const char *word, const struct bench_option *options) {
    if (word[0] != '-' || !word[1] || word[2])
        return NULL;
    if (word[1] == 't')
        return &bench_threads;
    if (word[1] == 's')
        return &bench_seed;
    for (; options->letter; options++)
        if (options->letter == word[1])
            return options->value;
    return NULL;
}

// The adapter's function that makes the pool, or opens it.
static const char *bench_opening = "bench_setup";
static void (*bench_teardown)(void);
// Called by each thread that has used the allocator and ends.
static void (*bench_thread_end)(void);

static inline void *bench_symbol(void *object, const char *path, const char *name, bool needed) {
    void *symbol = dlsym(object, name);
    if (!symbol && needed)
        bench_exit(BENCH_USAGE, "BENCH_ALLOCATOR=%s does not export %s", path, name);
    return symbol;
}

static inline void bench_load_adapter(void) {
    const char *path = getenv("BENCH_ALLOCATOR"), *pool = getenv("BENCH_POOL");
    if (!path || !*path)
        return;
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        bench_exit(BENCH_USAGE, "BENCH_ALLOCATOR: %s", dlerror());
    int (*setup)(const char *) =
        (int (*)(const char *))bench_symbol(object, path, bench_opening, true);
    bench_malloc = (void *(*)(size_t))bench_symbol(object, path, "bench_malloc", true);
    bench_free = (void (*)(void *))bench_symbol(object, path, "bench_free", true);
    bench_teardown = (void (*)(void))bench_symbol(object, path, "bench_teardown", false);
    bench_thread_end = (void (*)(void))bench_symbol(object, path, "bench_thread_end", false);
    if (setup(pool ? pool : "/dev/shm/bench-pool") != 0)
        bench_exit(BENCH_USAGE, "%s of BENCH_ALLOCATOR=%s failed", bench_opening, path);
}

// ---- Marks, for who traces accesses: BENCH_LOADS names a file (scripts/load_model.py).

static volatile char *bench_marked;

__attribute__((constructor)) static inline void bench_map_marks(void) {
    if (!getenv("BENCH_LOADS"))
        return;
    void *at = (void *)BENCH_MARKS;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(at, BENCH_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != at)
        bench_exit(BENCH_USAGE, "BENCH_LOADS: no page at %p", at);
    bench_marked = at;
}

static inline void bench_mark(enum bench_marks mark) {
    if (bench_marked)
        bench_marked[mark * 64] = 1;
}

// Which addresses are the heap's.
static inline void bench_copy_maps(void) {
    const char *path = getenv("BENCH_LOADS");
    FILE *from = path ? fopen("/proc/self/maps", "r") : NULL, *to = from ? fopen(path, "w") : NULL;
    for (int c; to && (c = getc(from)) != EOF;)
        putc(c, to);
    if (to)
        fclose(to);
    if (from)
        fclose(from);
}

// ---- The beginning.

// Reads the command line, [MODE] [-x N]..., and loads the adapter. Returns the index of the mode.
static inline unsigned bench_begin(int argc, char **argv, const char *const *modes,
                                   const struct bench_option *options) {
    const char *slash = strrchr(argv[0], '/');
    unsigned mode = 0;
    int at = 1;
    bench_name = slash ? slash + 1 : argv[0];
    if (modes) {
        while (argc > 1 && modes[mode] && strcmp(modes[mode], argv[1]) != 0)
            mode++;
        if (argc < 2 || !modes[mode])
            bench_usage(modes, options);
        at = 2;
    }
    for (; at < argc; at += 2) {
        uint64_t *value = bench_option_of(argv[at], options);
        if (!value || at + 1 == argc || !bench_number(argv[at + 1], value))
            bench_usage(modes, options);
    }
    if (bench_threads < 1 || bench_threads > BENCH_THREADS)
        bench_exit(BENCH_USAGE, "1 to %d threads", BENCH_THREADS);
    bench_load_adapter();
    void (*watch)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "bench_watch_begin");
    if (watch) // study/watch.c: what was flushed up to here is no figure of the program
        watch();
    return mode;
}

// ---- Threads and time.

static inline double bench_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct bench_worker {
    pthread_t id;
    pthread_barrier_t *gate;
    uint64_t (*work)(unsigned worker);
    uint64_t share;
    unsigned number;
};

static inline void bench_leave(void) {
    if (bench_thread_end)
        bench_thread_end();
}

static inline void *bench_worker_main(void *argument) {
    struct bench_worker *w = argument;
    pthread_barrier_wait(w->gate);
    w->share = w->work(w->number);
    bench_leave();
    return NULL;
}

// Runs work(0), work(1), ... in `count` threads that start together; the calling thread is one of
// them. *answer gets the sum of the results. Returns the seconds from the start to the end of the
// last thread.
static inline double bench_run(unsigned count, uint64_t (*work)(unsigned worker),
                               uint64_t *answer) {
    static struct bench_worker workers[BENCH_THREADS];
    bench_mark(BENCH_ZERO);
    if (count == 1) {
        double start = bench_clock();
        bench_mark(BENCH_ON);
        *answer += work(0);
        bench_mark(BENCH_OFF);
        return bench_clock() - start;
    }
    pthread_barrier_t gate;
    pthread_barrier_init(&gate, NULL, count + 1);
    for (unsigned i = 0; i < count; i++) {
        workers[i] = (struct bench_worker){.gate = &gate, .work = work, .number = i};
        if (pthread_create(&workers[i].id, NULL, bench_worker_main, &workers[i]) != 0)
            bench_exit(BENCH_WRONG, "cannot start thread %u", i);
    }
    bench_mark(BENCH_ON);
    pthread_barrier_wait(&gate);
    double start = bench_clock();
    for (unsigned i = 0; i < count; i++)
        pthread_join(workers[i].id, NULL);
    bench_mark(BENCH_OFF);
    double seconds = bench_clock() - start;
    for (unsigned i = 0; i < count; i++)
        *answer += workers[i].share;
    pthread_barrier_destroy(&gate);
    return seconds;
}

// Worker i's share of `total`.
static inline uint64_t bench_part(uint64_t total, unsigned i) {
    return total / bench_threads + (i < total % bench_threads);
}

static inline int bench_report(uint64_t ops, double seconds, uint64_t answer) {
    printf("answer=%016llx ops=%llu seconds=%.6f", (unsigned long long)answer,
           (unsigned long long)ops, seconds);
    if (bench_live)
        printf(" live=%llu own=%llu", (unsigned long long)bench_live,
               (unsigned long long)bench_own);
    putchar('\n');
    bench_copy_maps();
    if (bench_teardown)
        bench_teardown();
    return 0;
}

#endif
