// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the compiler calls before each access of code built with -fsanitize=thread, and wrappers of
// memcpy and its kin. Here these calls are no race detector's: one file of a program includes this
// one, after it has defined the functions that it wants to be called:
//
//   on_read(p, n), on_write(p, n)     before plain accesses of n bytes
//   before_load(p, n)                 before an atomic load
//   before_atomic(p, n)               before any other atomic access
//   on_cas(p, bits, from, to)         after a compare-and-exchange that was done
//   on_exchange(p, bits, to)          before an exchange
//   on_enter(), on_leave()            of each function
//   on_fence()
#ifndef PMALLOC_TESTS_CRASH_COMPILER_CALLS_H
#define PMALLOC_TESTS_CRASH_COMPILER_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSAN(name, ...)                                                                            \
    void __tsan_##name(__VA_ARGS__);                                                               \
    void __tsan_##name(__VA_ARGS__)

TSAN(init, void) {}
TSAN(func_entry, void *pc) { (void)pc, on_enter(); }
TSAN(func_exit, void) { on_leave(); }
TSAN(read_range, void *p, size_t n) { on_read(p, n); }
TSAN(write_range, void *p, size_t n) { on_write(p, n); }
TSAN(vptr_update, void **p, void *v) { (void)v, on_write(p, 8); }
TSAN(vptr_read, void **p) { on_read(p, 8); }
#define ACCESS(n)                                                                                  \
    TSAN(read##n, void *p) { on_read(p, n); }                                                      \
    TSAN(write##n, void *p) { on_write(p, n); }                                                    \
    TSAN(unaligned_read##n, void *p) { on_read(p, n); }                                            \
    TSAN(unaligned_write##n, void *p) { on_write(p, n); }                                          \
    TSAN(volatile_read##n, void *p) { on_read(p, n); }                                             \
    TSAN(volatile_write##n, void *p) { on_write(p, n); }                                           \
    TSAN(unaligned_volatile_read##n, void *p) { on_read(p, n); }                                   \
    TSAN(unaligned_volatile_write##n, void *p) { on_write(p, n); }                                 \
    TSAN(read_write##n, void *p) { on_write(p, n); }                                               \
    TSAN(unaligned_read_write##n, void *p) { on_write(p, n); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

#define ATOMIC(n, type)                                                                            \
    type __tsan_atomic##n##_load(const volatile type *p, int mo);                                  \
    type __tsan_atomic##n##_load(const volatile type *p, int mo) {                                 \
        (void)mo, before_load(p, n / 8);                                                           \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                               \
    }                                                                                              \
    void __tsan_atomic##n##_store(volatile type *p, type v, int mo);                               \
    void __tsan_atomic##n##_store(volatile type *p, type v, int mo) {                              \
        (void)mo, before_atomic(p, n / 8);                                                         \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                  \
    }                                                                                              \
    int __tsan_atomic##n##_compare_exchange_strong(volatile type *p, type *c, type v, int mo,      \
                                                   int fail);                                      \
    int __tsan_atomic##n##_compare_exchange_strong(volatile type *p, type *c, type v, int mo,      \
                                                   int fail) {                                     \
        (void)mo, (void)fail, before_atomic(p, n / 8);                                             \
        bool done = __atomic_compare_exchange_n(p, c, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);   \
        if (done)                                                                                  \
            on_cas(p, n, *c, v);                                                                   \
        return done;                                                                               \
    }                                                                                              \
    int __tsan_atomic##n##_compare_exchange_weak(volatile type *p, type *c, type v, int mo,        \
                                                 int fail);                                        \
    int __tsan_atomic##n##_compare_exchange_weak(volatile type *p, type *c, type v, int mo,        \
                                                 int fail) {                                       \
        return __tsan_atomic##n##_compare_exchange_strong(p, c, v, mo, fail);                      \
    }                                                                                              \
    type __tsan_atomic##n##_compare_exchange_val(volatile type *p, type c, type v, int mo,         \
                                                 int fail);                                        \
    type __tsan_atomic##n##_compare_exchange_val(volatile type *p, type c, type v, int mo,         \
                                                 int fail) {                                       \
        __tsan_atomic##n##_compare_exchange_strong(p, &c, v, mo, fail);                            \
        return c;                                                                                  \
    }                                                                                              \
    type __tsan_atomic##n##_exchange(volatile type *p, type v, int mo);                            \
    type __tsan_atomic##n##_exchange(volatile type *p, type v, int mo) {                           \
        (void)mo, before_atomic(p, n / 8), on_exchange(p, n, v);                                   \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                        \
    }                                                                                              \
    ATOMIC_RMW(n, type, fetch_add)                                                                 \
    ATOMIC_RMW(n, type, fetch_sub)                                                                 \
    ATOMIC_RMW(n, type, fetch_and)                                                                 \
    ATOMIC_RMW(n, type, fetch_or)                                                                  \
    ATOMIC_RMW(n, type, fetch_xor)
#define ATOMIC_RMW(n, type, name)                                                                  \
    type __tsan_atomic##n##_##name(volatile type *p, type v, int mo);                              \
    type __tsan_atomic##n##_##name(volatile type *p, type v, int mo) {                             \
        (void)mo, before_atomic(p, n / 8);                                                         \
        return __atomic_##name(p, v, __ATOMIC_SEQ_CST);                                            \
    }
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
TSAN(atomic_thread_fence, int mo) { (void)mo, on_fence(); }
TSAN(atomic_signal_fence, int mo) { (void)mo, on_fence(); }

void *__real_memcpy(void *to, const void *from, size_t n);
void *__real_memmove(void *to, const void *from, size_t n);
void *__real_memset(void *to, int c, size_t n);
#define MEMORY(prefix)                                                                             \
    void *prefix##memcpy(void *to, const void *from, size_t n);                                    \
    void *prefix##memcpy(void *to, const void *from, size_t n) {                                   \
        on_read(from, n), on_write(to, n);                                                         \
        return __real_memcpy(to, from, n);                                                         \
    }                                                                                              \
    void *prefix##memmove(void *to, const void *from, size_t n);                                   \
    void *prefix##memmove(void *to, const void *from, size_t n) {                                  \
        on_read(from, n), on_write(to, n);                                                         \
        return __real_memmove(to, from, n);                                                        \
    }                                                                                              \
    void *prefix##memset(void *to, int c, size_t n);                                               \
    void *prefix##memset(void *to, int c, size_t n) {                                              \
        on_write(to, n);                                                                           \
        return __real_memset(to, c, n);                                                            \
    }
MEMORY(__wrap_)
MEMORY(__tsan_)

#endif
