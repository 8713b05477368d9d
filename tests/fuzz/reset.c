// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "reset.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "media/heap.h"
#include "media/open/heap_open.h"
#include "tools/common/root_member.h"

extern char __start_pm_bss[], __stop_pm_bss[], __start_pm_data[], __stop_pm_data[];

static char *saved;

// Not memcpy: the sections contain red zones, and the sanitizer would report their bytes.
static void copy(void *to, const void *from, size_t len) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len)::"memory");
}

// ---- tables -------------------------------------------------------------------------------------
//
// The library never unmaps its tables. Over thousands of heaps they would fill the address space,
// and in the end the heap's range. So the linker wraps these calls. A table of pm_os_reserve()
// keeps its addresses for the next heap, and its memory goes back to the kernel. A table of
// pm_os_reserve_unused() is unmapped.

#define TABLES 64
static struct table {
    char *at;
    size_t size;
    int used;
} tables[TABLES];

void *__real_pm_os_reserve(size_t bytes);
int __real_munmap(void *at, size_t len);
// The program that a heap names is not looked at: it would stay open for each of them.
bool root_member(const char *heap, const struct pm_root *root, char *out) {
    (void)heap, (void)root, (void)out;
    return false;
}

void *__wrap_pm_os_reserve(size_t bytes);
int __wrap_munmap(void *at, size_t len);

void *__wrap_pm_os_reserve(size_t bytes) {
    for (int i = 0; i < TABLES; i++) {
        struct table *t = &tables[i];
        if (t->used || (t->at && t->size != bytes))
            continue;
        if (!t->at)
            t->at = __real_pm_os_reserve(bytes);
        t->size = bytes;
        t->used = t->at != NULL;
        return t->at;
    }
    fprintf(stderr, "reset: more than %d tables\n", TABLES);
    abort();
}

static void empty(struct table *t) {
    madvise(t->at, t->size, MADV_DONTNEED);
    t->used = 0;
    // the sizes of small tables differ from heap to heap: keeping all would fill tables[]
    if (t->size < 16u << 20) {
        __real_munmap(t->at, t->size);
        t->at = NULL;
    }
}

int __wrap_munmap(void *at, size_t len) {
    for (int i = 0; i < TABLES; i++)
        if (tables[i].used && tables[i].at == at) {
            empty(&tables[i]);
            return 0;
        }
    return __real_munmap(at, len);
}

static struct {
    void *at;
    size_t size;
} unused[TABLES];
static unsigned unused_count;

void *__real_pm_os_reserve_unused(size_t bytes);
void *__wrap_pm_os_reserve_unused(size_t bytes);
void *__wrap_pm_os_reserve_unused(size_t bytes) {
    if (unused_count == TABLES) {
        fprintf(stderr, "reset: more than %d tables\n", TABLES);
        abort();
    }
    unused[unused_count].at = __real_pm_os_reserve_unused(bytes);
    unused[unused_count].size = bytes;
    return unused[unused_count++].at;
}

// ---- all ----------------------------------------------------------------------------------------

void reset_init(void) {
    size_t bss = (size_t)(__stop_pm_bss - __start_pm_bss);
    size_t data = (size_t)(__stop_pm_data - __start_pm_data);
    saved = mmap(NULL, bss + data, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    copy(saved, __start_pm_bss, bss);
    copy(saved + bss, __start_pm_data, data);
}

void reset(void) {
    size_t bss = (size_t)(__stop_pm_bss - __start_pm_bss);
    pm_heap_release();
    __real_munmap((void *)(uintptr_t)PM_HEAP_BASE, PM_SHARDS * PM_SHARD_RANGE);
    for (int i = 0; i < TABLES; i++)
        if (tables[i].used)
            empty(&tables[i]);
    for (; unused_count; unused_count--)
        __real_munmap(unused[unused_count - 1].at, unused[unused_count - 1].size);
    copy(__start_pm_bss, saved, bss);
    copy(__start_pm_data, saved + bss, (size_t)(__stop_pm_data - __start_pm_data));
}
