// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makalu as the allocator of the benchmark programs. It asks for memory, which comes from a file.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "library.h"

void bench_thread_end(void);

static void *(*start)(int (*more)(void **at, size_t align, size_t size));
static void *(*allocate)(size_t size);
static void (*release)(void *p), (*begin_thread)(void), (*end_thread)(void);
static char *next, *end;
static __thread int begun;

// Makalu holds its lock meanwhile.
static int more(void **at, size_t align, size_t size) {
    char *p = (char *)(((uintptr_t)next + align - 1) & -align);
    if (size > (size_t)(end - p))
        return -1;
    next = p + size;
    *at = p;
    return 0;
}

int bench_setup(const char *pool) {
    if (bench_function(&start, "MAK_start") || bench_function(&allocate, "MAK_malloc") ||
        bench_function(&release, "MAK_free") || bench_function(&begin_thread, "MAK_init_thread") ||
        bench_function(&end_thread, "MAK_teardown_main_thread_local")) // of any thread
        return -1;
    int fd = open(pool, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bench_pool_bytes()) != 0)
        return -1;
    next = mmap(NULL, bench_pool_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    end = next + bench_pool_bytes();
    close(fd);
    if (next == MAP_FAILED)
        return -1;
    start(more);
    begun = 1;
    return 0;
}

// A thread that it does not know may not even free.
static void know_thread(void) {
    if (!begun)
        begin_thread();
    begun = 1;
}

void *bench_malloc(size_t size) {
    know_thread();
    return allocate(size);
}

void bench_free(void *p) {
    know_thread();
    release(p);
}

void bench_thread_end(void) {
    if (begun)
        end_thread();
    begun = 0;
}
