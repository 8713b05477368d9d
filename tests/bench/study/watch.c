// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library to preload, which flushes in libpmem's place: for libpmemobj, for study builds of
// PMAlloc (inside.c), and for any allocator that calls these functions. scripts/study and
// scripts/bench --flush-ns use it.
//
// BENCH_FLUSH_NS: each line flushed takes so many nanoseconds more, as on slower media.
// BENCH_WATCH names a file; at the end this line goes there, and then a line for each of the first
// BENCH_WATCH_FIRST lines flushed (none): its number, in hexadecimal.
//   flushes=N fences=N reflushes=N
// A reflush is a flush of a line that is among the last four lines that the thread flushed.
#include <cpuid.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE = 64, RECENT = 4 };
enum { NO_FLUSH = 1 << 5, NO_DRAIN = 1 << 0 }; // of libpmem: PMEM_F_MEM_NOFLUSH, _NODRAIN

void bench_watch_begin(void);
void pmem_flush(const void *addr, size_t len);
void pmem_drain(void);
void pmem_persist(const void *addr, size_t len);
void *pmem_memcpy(void *to, const void *from, size_t len, unsigned flags);
void *pmem_memmove(void *to, const void *from, size_t len, unsigned flags);
void *pmem_memset(void *to, int byte, size_t len, unsigned flags);

static const char *file; // NULL: nothing is counted
static long delay_ns;
static int has_clwb;
static atomic_ulong flushes, fences, reflushes, noted;
static unsigned long *first, first_count;
static __thread unsigned long recent[RECENT]; // each once, the latest first

static void wait_ns(long ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    for (long from = t.tv_sec * 1000000000 + t.tv_nsec, now = from; now - from < ns;) {
        __builtin_ia32_pause();
        clock_gettime(CLOCK_MONOTONIC, &t);
        now = t.tv_sec * 1000000000 + t.tv_nsec;
    }
}

static void count(unsigned long line) {
    unsigned i = 0;
    while (i < RECENT - 1 && recent[i] != line)
        i++;
    atomic_fetch_add_explicit(&flushes, 1, memory_order_relaxed);
    if (recent[i] == line)
        atomic_fetch_add_explicit(&reflushes, 1, memory_order_relaxed);
    for (; i > 0; i--)
        recent[i] = recent[i - 1];
    recent[0] = line;
    unsigned long at = first_count ? atomic_fetch_add(&noted, 1) : 0;
    if (at < first_count)
        first[at] = line;
}

void pmem_flush(const void *addr, size_t len) {
    unsigned long line = (unsigned long)addr / LINE;
    for (; line * LINE < (unsigned long)addr + len; line++) {
        volatile char *at = (volatile char *)(line * LINE);
        if (has_clwb)
            __asm__ volatile("clwb %0" : "+m"(*at)::"memory");
        else
            __asm__ volatile("clflush %0" : "+m"(*at)::"memory");
        if (file)
            count(line);
        if (delay_ns)
            wait_ns(delay_ns);
    }
}

void pmem_drain(void) {
    __asm__ volatile("sfence" ::: "memory");
    if (file)
        atomic_fetch_add_explicit(&fences, 1, memory_order_relaxed);
}

void pmem_persist(const void *addr, size_t len) {
    pmem_flush(addr, len);
    pmem_drain();
}

static void *stored(void *to, size_t len, unsigned flags) {
    if (!(flags & NO_FLUSH))
        pmem_flush(to, len);
    if (!(flags & (NO_FLUSH | NO_DRAIN)))
        pmem_drain();
    return to;
}

void *pmem_memcpy(void *to, const void *from, size_t len, unsigned flags) {
    return stored(memcpy(to, from, len), len, flags);
}

void *pmem_memmove(void *to, const void *from, size_t len, unsigned flags) {
    return stored(memmove(to, from, len), len, flags);
}

void *pmem_memset(void *to, int byte, size_t len, unsigned flags) {
    return stored(memset(to, byte, len), len, flags);
}

// Only what comes from here on counts (bench.h).
void bench_watch_begin(void) { flushes = fences = reflushes = noted = 0; }

static long number(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void) {
    unsigned a, b = 0, c, d;
    has_clwb = __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 24;
    delay_ns = number("BENCH_FLUSH_NS");
    first_count = (unsigned long)number("BENCH_WATCH_FIRST");
    first = mmap(NULL, (first_count + 1) * sizeof *first, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (first == MAP_FAILED)
        first_count = 0;
    file = getenv("BENCH_WATCH");
}

__attribute__((destructor)) static void end(void) {
    FILE *out = file ? fopen(file, "w") : NULL;
    if (!out)
        return;
    fprintf(out, "flushes=%lu fences=%lu reflushes=%lu\n", flushes, fences, reflushes);
    for (unsigned long i = 0; i < first_count && i < noted; i++)
        fprintf(out, "%lx\n", first[i]);
    fclose(out);
}
