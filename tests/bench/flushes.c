// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Counts the cache lines that the allocator flushes, its fences, and its reflushes: flushes of a
// line that is among the last four lines flushed. The program is linked with the allocator, and
// replaces the backend of core/media/persist.h. It uses a heap of its own. It prints one line per
// workload:
//   NAME ops=N flushes=N fences=N reflushes=N
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "media/persist.h"
#include "preload/pmalloc.h"
#include "process/entry.h"
#include "process/start.h"
#include "temporary_heap.h"

enum { LINE = 64, RECENT = 4, HELD = 2000 };

static struct seen {
    uint64_t flushes, fences, reflushes;
    uintptr_t recent[RECENT]; // the lines flushed last, each once, the latest first
} seen;

static void record_line(uintptr_t line) {
    unsigned i = 0;
    while (i < RECENT - 1 && seen.recent[i] != line)
        i++;
    seen.flushes++;
    seen.reflushes += seen.recent[i] == line;
    for (; i > 0; i--)
        seen.recent[i] = seen.recent[i - 1];
    seen.recent[0] = line;
}

static void record_flush(const void *addr, size_t len) {
    uintptr_t at = (uintptr_t)addr / LINE, end = ((uintptr_t)addr + len + LINE - 1) / LINE;
    for (; at < end; at++)
        record_line(at);
}

static void record_drain(void) { seen.fences++; }

static uint64_t random_state = 1;

static size_t random_between(size_t from, size_t to) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return from + (size_t)((random_state >> 32) * (to - from + 1) >> 32);
}

static void *held[HELD];

static void *allocate(size_t size) {
    void *p = pm_malloc(size);
    if (!p) {
        fprintf(stderr, "flushes: out of memory\n");
        exit(1);
    }
    return p;
}

// Frees a block at random and allocates another one in its place, `times` times. Returns the number
// of operations.
static uint64_t replace(size_t from, size_t to, unsigned count, unsigned times) {
    for (unsigned i = 0; i < times; i++) {
        unsigned victim = (unsigned)random_between(0, count - 1);
        pm_free(held[victim]);
        held[victim] = allocate(random_between(from, to));
    }
    return 2 * (uint64_t)times;
}

static void fill(size_t from, size_t to, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        held[i] = allocate(random_between(from, to));
}

static void empty(unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        pm_free(held[i]);
        held[i] = NULL;
    }
}

static void begin(void) { seen.flushes = seen.fences = seen.reflushes = 0; }

static void end(const char *name, uint64_t ops) {
    printf("%s ops=%llu flushes=%llu fences=%llu reflushes=%llu\n", name, (unsigned long long)ops,
           (unsigned long long)seen.flushes, (unsigned long long)seen.fences,
           (unsigned long long)seen.reflushes);
}

// A steady state: blocks of these sizes are replaced at random.
static void steady(const char *name, size_t from, size_t to, unsigned count, unsigned times) {
    fill(from, to, count);
    replace(from, to, count, times);
    begin();
    end(name, replace(from, to, count, times));
    empty(count);
}

// One block of a kind, freed and allocated again.
static void steady_of(const char *name, size_t size, unsigned flags, unsigned times) {
    pm_free(pmalloc_alloc(size, 0, flags));
    begin();
    for (unsigned i = 0; i < times; i++)
        pm_free(pmalloc_alloc(size, 0, flags));
    end(name, 2 * (uint64_t)times);
}

// As steady(), in ten heaps, each of which has some small blocks more. How often the cache for
// large blocks is full hangs on the length of the heap, so one length is no figure of a workload.
static void steady_in_ten(const char *name, size_t from, size_t to, unsigned count,
                          unsigned times) {
    begin();
    uint64_t ops = 0;
    for (unsigned heap = 0; heap < 10; heap++) {
        struct seen before = seen;
        for (unsigned i = 0; i < 20000; i++)
            allocate(64);
        fill(from, to, count);
        replace(from, to, count, times);
        seen = before;
        ops += replace(from, to, count, times);
        empty(count);
    }
    end(name, ops);
}

static void growing(const char *name, size_t size, unsigned count) {
    begin();
    for (unsigned i = 0; i < count; i++)
        allocate(size);
    end(name, count);
}

// Blocks of another size, after nine in ten blocks have been freed. This counts what slabs flush
// when they morph.
static void changed(const char *name, size_t before, size_t after, unsigned count) {
    void **blocks = calloc(count, sizeof *blocks);
    for (unsigned i = 0; i < count; i++)
        blocks[i] = allocate(before);
    for (unsigned i = 0; i < count; i++)
        if (random_between(0, 9) > 0)
            pm_free(blocks[i]);
    free(blocks);
    growing(name, after, count);
}

// Publishes of two stores: a node of 48 bytes takes the place of the first in one of many lists.
static void publishing(const char *name, unsigned lists, unsigned times) {
    uint64_t **list = allocate(lists * sizeof *list);
    uint64_t *counts = allocate(lists * 64);
    memset(list, 0, lists * sizeof *list);
    begin();
    for (unsigned i = 0; i < times; i++) {
        pmalloc_op op[4] = {0};
        unsigned at = (unsigned)random_between(0, lists - 1);
        uint64_t *n = pmalloc_reserve(&op[0], 48, 0, 0);
        n[0] = i;
        pmalloc_store(&op[1], &list[at], (uint64_t)(uintptr_t)n);
        pmalloc_store(&op[2], &counts[at * 8], i);
        pmalloc_defer_free(&op[3], list[at]);
        if (pmalloc_publish(op, 4) != 0)
            exit(1);
    }
    end(name, times);
}

// Pinned blocks of 64 to 128 bytes: allocated in a row; then one at random freed and another
// allocated; then the same by publishes, with the store of a word that has the block's offset.
static void pinning(unsigned count, unsigned times) {
    char **blocks = calloc(count, sizeof *blocks);
    uint64_t *words = allocate(count * sizeof *words);
    begin();
    for (unsigned i = 0; i < count; i++)
        blocks[i] = pmalloc_alloc(random_between(64, 128), 0, PMALLOC_PINNED);
    end("pinned-growing", count);
    begin();
    for (unsigned i = 0; i < times; i++) {
        unsigned at = (unsigned)random_between(0, count - 1);
        pm_free(blocks[at]);
        blocks[at] = pmalloc_alloc(random_between(64, 128), 0, PMALLOC_PINNED);
    }
    end("pinned", 2ull * times);
    begin();
    for (unsigned i = 0; i < times; i++) {
        pmalloc_op op[3] = {0};
        unsigned at = (unsigned)random_between(0, count - 1);
        char *p =
            pmalloc_reserve(&op[0], random_between(64, 128), 0, PMALLOC_PINNED | PMALLOC_FLUSHED);
        pmalloc_store(&op[1], &words[at], (uint64_t)(p - (char *)words));
        pmalloc_defer_free(&op[2], blocks[at]);
        blocks[at] = p;
        if (pmalloc_publish(op, 3) != 0)
            exit(1);
    }
    end("pinned-publish", times);
    free(blocks);
}

int main(void) {
    if (!temporary_heap_name("flushes"))
        return 2;
    setenv("PMALLOC_DECAY_MS", "3600000", 1); // what the clock ends is no figure of a workload
    pm_process_start();
    pm_persist = (struct pm_persist_ops){record_flush, record_drain};
    steady("cached", 64, 64, 1, 100000);
    steady("small", 8, 8000, HELD, 100000);
    growing("small-growing", 64, 200000);
    steady_in_ten("large", 17000, 500000, 500, 20000);
    growing("large-growing", 40000, 1000);
    changed("changed", 100, 130, 200000);
    steady("huge", 3 << 20, 9 << 20, 20, 2000);
    steady("large-again", 32768, 32768, 1, 100000);
    steady("huge-again", 4 << 20, 4 << 20, 1, 10000);
    steady_of("large-pointer-free", 200 << 10, PMALLOC_POINTER_FREE, 10000);
    steady_of("large-pinned", 200 << 10, PMALLOC_PINNED, 10000);
    publishing("publish", 4096, 20000);
    pinning(200000, 100000);
    return temporary_heap_remove() ? 0 : 1;
}
