// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A thread that libc does not know. It shares memory and descriptors with the process, and not the
// working directory: calls such as setns() fail if two threads share it. All signals are blocked in
// it, also libc's internal ones, so no handler of the program ever runs there. libc does not count
// it: pthread_exit() of the program's last thread ends the process all the same.
//
// Without thread-local storage of its own it uses its maker's. Then it must call no function of
// libc, not even the wrappers of system calls, which store to errno.
#ifndef PM_BARE_THREAD_H
#define PM_BARE_THREAD_H

#include <stdatomic.h>
#include <stdint.h>

// For functions that run in a thread without thread-local storage. Sanitizers would use that, too.
#define PM_BARE                                                                                    \
    __attribute__((noinline, no_sanitize("address", "undefined", "thread"), no_stack_protector))

// Starts a thread that runs the function and ends. `tls` is its thread pointer, NULL: the maker's.
// The kernel stores the thread's id to *tid, and 0 when the thread has ended: a futex, not private.
// Returns the id, or a negative error.
long pm_bare_thread(void (*run)(void), void *stack_top, void *tls, _Atomic uint32_t *tid);
// The same with a copy of the table of descriptors, and its maker's thread-local storage.
long pm_bare_thread_apart(void (*run)(void), void *stack_top, _Atomic uint32_t *tid);

// For a thread whose *tid is 0: waits until the process has a thread less, too, which is a little
// later. The kernel refuses some calls until then. At most one second; stores no errno.
void pm_bare_thread_leave(long id);

// A system call that stores no errno. Returns a negative error.
__attribute__((always_inline)) static inline long pm_bare_call6(long number, long a, long b, long c,
                                                                long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
static inline long pm_bare_call(long number, long a, long b, long c, long d) {
    return pm_bare_call6(number, a, b, c, d, 0, 0);
}

#endif
