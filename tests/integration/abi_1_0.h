// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What programs that were linked with libpmalloc.so.0 and PMALLOC_1.0 rely on. Nothing here changes
// (test_libc_contract.py).
#include <stddef.h>
#include <stdint.h>

struct pmalloc_op;
int pmalloc_set_root(unsigned slot, void *p);
void *pmalloc_get_root(unsigned slot);
int pmalloc_is_persistent(void);
const char *pmalloc_heap_path(void);
uint64_t pmalloc_generation(void);
int pmalloc_commit(void);
int pmalloc_collect(void);
const char *pmalloc_version(void);
void *pmalloc_alloc(size_t size, size_t align, unsigned flags);
void *pmalloc_reserve(struct pmalloc_op *op, size_t size, size_t align, unsigned flags);
int pmalloc_store(struct pmalloc_op *op, void *where, uint64_t value);
int pmalloc_store_root(struct pmalloc_op *op, unsigned slot, void *p);
void pmalloc_defer_free(struct pmalloc_op *op, void *p);
int pmalloc_publish(struct pmalloc_op *op, size_t n);
void pmalloc_cancel(struct pmalloc_op *op, size_t n);
void *pmalloc_malloc_to(void *where, size_t size);
void *pmalloc_calloc_to(void *where, size_t count, size_t size);
void *pmalloc_realloc_at(void *where, size_t size);
int pmalloc_free_from(void *where);
void pmalloc_flush(const void *p, size_t n);
void pmalloc_drain(void);
void pmalloc_persist(const void *p, size_t n);
int pmalloc_needs_flush(void);
void pmalloc_set_free_callback(int (*taker)(void *p));
void pmalloc_free_now(void *p);
int pmalloc_walk(int (*fn)(void *p, size_t size, unsigned flags, void *arg), void *arg);

#ifdef PMALLOC_ROOT_SLOTS // after pmalloc.h
_Static_assert(sizeof(struct pmalloc_op) == 64 && _Alignof(struct pmalloc_op) == 8, "op");
_Static_assert(PMALLOC_ROOT_SLOTS == 512 && PMALLOC_PUBLISH_STORES >= 124, "room");
_Static_assert(PMALLOC_ZERO == 1 && PMALLOC_FLUSHED == 2 && PMALLOC_POINTER_FREE == 4, "flags");
#endif
