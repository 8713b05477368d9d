// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Misuse: each check does one wrong thing, then prints that it went on.
#include "contract.h"

#include <sys/mman.h>

static void went_on(void) {
    void *p = my_malloc(100);
    CHECK(p);
    my_free(p);
    printf("went on\n");
}

static void double_free(size_t size) {
    char *keep = my_malloc(size), *p = my_malloc(size);
    CHECK(keep && p);
    my_free(p);
    my_free(p);
    void *a = my_malloc(size), *b = my_malloc(size);
    CHECK(a && b && a != b); // only one of the two frees counted
    went_on();
}
void double_free_small(void) { double_free(64); }
void double_free_large(void) { double_free(100000); }
void double_free_huge(void) { double_free(10 << 20); }

static void free_at(size_t size, size_t offset) {
    char *p = my_malloc(size);
    CHECK(p);
    memset(p, 1, size);
    my_free(p + offset);
    CHECK(all_are(p, 1, size));
    my_free(p);
    went_on();
}
void interior_small(void) { free_at(512, 16); }
void interior_large(void) { free_at(100000, 4096); }
void interior_huge(void) { free_at(10 << 20, 1 << 20); }
void misaligned_small(void) { free_at(64, 8); }
void misaligned_large(void) { free_at(100000, 1); }

void realloc_freed(void) {
    void *p = my_malloc(64);
    my_free(p);
    errno = 0;
    CHECK(my_realloc(p, 128) == NULL);
    went_on();
}
void usable_freed(void) {
    void *p = my_malloc(64);
    my_free(p);
    CHECK(malloc_usable_size(p) == 0);
    went_on();
}
void never_allocated(void) {
    char *p = my_malloc(64);
    my_free((char *)((uintptr_t)p & -65536ul) + (512 << 20));
    went_on();
}
void foreign_stack(void) {
    char block[64] __attribute__((aligned(16)));
    memset(block, 1, sizeof block);
    for (int i = 0; i < 10; i++)
        my_free(block);
    CHECK(all_are(block, 1, sizeof block));
    went_on();
}
void foreign_mapping(void) {
    char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    my_free(p + 64);
    CHECK(all_are(p, 0, 4096));
    went_on();
}
