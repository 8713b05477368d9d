// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the checks of `contract` share. Allocations go through volatile pointers, so that the
// compiler cannot leave them out.
#ifndef PMALLOC_TESTS_INTEGRATION_CONTRACT_H
#define PMALLOC_TESTS_INTEGRATION_CONTRACT_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: %s does not hold (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

extern void *(*volatile my_malloc)(size_t);
extern void *(*volatile my_calloc)(size_t, size_t);
extern void *(*volatile my_realloc)(void *, size_t);
extern void *(*volatile my_reallocarray)(void *, size_t, size_t);
extern void *(*volatile my_aligned_alloc)(size_t, size_t);
extern void *(*volatile my_memalign)(size_t, size_t);
extern void (*volatile my_free)(void *);

// Sizes on both sides of every border: between size classes, slabs, regions and huge blocks.
enum { SIZES = 53 };
extern const size_t sizes[SIZES];

int all_are(const void *p, unsigned char value, size_t length);

// contract_threads.c
void threads(void);
void tls_destructors(void);
void many_threads(void);

// contract_misuse.c
void double_free_small(void);
void double_free_large(void);
void double_free_huge(void);
void interior_small(void);
void interior_large(void);
void interior_huge(void);
void misaligned_small(void);
void misaligned_large(void);
void realloc_freed(void);
void usable_freed(void);
void never_allocated(void);
void foreign_stack(void);
void foreign_mapping(void);

#endif
