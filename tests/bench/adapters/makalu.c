// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makalu as the allocator of the benchmark programs. It asks for memory, which comes from a file.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "library.h"

void bench_thread_end(void);

static char *(*start)(int (*more)(void **at, size_t align, size_t size));
static void *(*allocate)(size_t size);
static void (*release)(void *p), (*begin_thread)(void), (*end_thread)(void);
static void (*start_offline)(char *at, int (*more)(void **at, size_t align, size_t size));
static void (*restart)(char *at, int (*more)(void **at, size_t align, size_t size));
static int (*collect)(void); // 1: done
static void (*finish)(void), **(*root_at)(unsigned id);
static __thread int begun;

// The first page of the pool. Its pointers are plain, so it lies at the same address each time.
#define POOL ((struct pool *)0x200000000000)
struct pool {
    char *next, *end, *makalu;
};
enum { PAGE = 4096 };

// Makalu holds its lock meanwhile.
static int more(void **at, size_t align, size_t size) {
    char *p = (char *)(((uintptr_t)POOL->next + align - 1) & -align);
    if (size > (size_t)(POOL->end - p))
        return -1;
    POOL->next = p + size;
    *at = p;
    return 0;
}

static int open_pool(const char *path, int flags) {
    if (bench_function(&start, "MAK_start") || bench_function(&allocate, "MAK_malloc") ||
        bench_function(&release, "MAK_free") || bench_function(&begin_thread, "MAK_init_thread") ||
        bench_function(&end_thread, "MAK_teardown_main_thread_local") || // of any thread
        bench_function(&start_offline, "MAK_start_off") || bench_function(&finish, "MAK_close") ||
        bench_function(&restart, "MAK_restart") || bench_function(&collect, "MAK_collect_off") ||
        bench_function(&root_at, "MAK_persistent_root_addr"))
        return -1;
    int fd = open(path, O_RDWR | flags, 0600);
    if (fd < 0 || (flags && ftruncate(fd, (off_t)bench_pool_bytes()) != 0))
        return -1;
    void *at = mmap(POOL, bench_pool_bytes(), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    close(fd);
    return at == POOL ? 0 : -1;
}

int bench_setup(const char *pool) {
    if (open_pool(pool, O_CREAT | O_EXCL) != 0)
        return -1;
    POOL->next = (char *)POOL + PAGE;
    POOL->end = (char *)POOL + bench_pool_bytes();
    POOL->makalu = start(more);
    begun = 1;
    return 0;
}

// After a failure Makalu collects offline, and then starts as after a good end.
int bench_reopen(const char *pool) {
    if (open_pool(pool, 0) != 0)
        return -1;
    start_offline(POOL->makalu, more);
    if (!collect())
        return -1;
    finish();
    restart(POOL->makalu, more);
    begun = 1;
    return 0;
}

void *bench_root(void) {
    void **root = root_at(0);
    if (!*root)
        *root = allocate(BENCH_ROOT);
    return *root;
}

void bench_link(void **at, void *to) { *at = to; }
void *bench_linked(void **at) { return *at; }

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
