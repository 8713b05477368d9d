// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "reset.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "heap.h"

extern char __start_pm_bss[], __stop_pm_bss[], __start_pm_data[], __stop_pm_data[];

static char *saved;

// Not memcpy: the sections have the sanitizer's red zones in them.
static void copy(void *to, const void *from, size_t len) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(len)::"memory");
}

// ---- tables ------------------------------------------------------------------------------------------
//
// The library never gives its tables back. Here each keeps its place for the next round; what was touched of it
// goes back to the kernel. So pm_os_reserve() and munmap() are wrapped by the linker.

#define TABLES 64
static struct table {
    char *at;
    size_t size;
    int used;
} tables[TABLES];

void *__real_pm_os_reserve(size_t bytes);
int __real_munmap(void *at, size_t len);
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
    if (t->size < 16u << 20) { // its size depends on the heap: too many of them
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

// ---- all ---------------------------------------------------------------------------------------------

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
    __real_munmap((void *)(uintptr_t)PM_HEAP_BASE, PM_HEAP_RANGE);
    for (int i = 0; i < TABLES; i++)
        if (tables[i].used)
            empty(&tables[i]);
    copy(__start_pm_bss, saved, bss);
    copy(__start_pm_data, saved + bss, (size_t)(__stop_pm_data - __start_pm_data));
}
