// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Making private pages the process's own before somebody else changes the file beneath them.
//
// The copier is a thread made by a bare clone(): it shares the descriptors, but not the working directory, or calls
// such as setns() would find the process with two users of it. It lives on the thread-local storage of the thread that
// made it, so it calls nothing of libc and no system call by libc's wrappers, which store to errno; and all
// signals are blocked in it, so that no handler of the program ever runs there.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"
#include "heap.h"
#include "lock.h"
#include "os.h"
#include "private.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define STEP ((uint64_t)2 << 20)
#define STACK_SIZE 8192

// Of functions that run in the copier: sanitizers keep their state in thread-local storage, too.
#define BARE                                                                                       \
    __attribute__((noinline, no_sanitize("address", "undefined", "thread"), no_stack_protector))

static long bare_call(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = 0;
    register long r9 __asm__("r9") = 0;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

// ---- pages -------------------------------------------------------------------------------------------

// Of a page that the program has made unwritable meanwhile: the kernel stores to it nevertheless.
BARE static void force_page(char *page) {
    char byte;
    long fd = bare_call(SYS_open, (long)"/proc/self/mem", O_RDWR | O_CLOEXEC, 0, 0);
    if (fd < 0)
        return;
    if (bare_call(SYS_pread64, fd, (long)&byte, 1, (long)page) == 1)
        bare_call(SYS_pwrite64, fd, (long)&byte, 1, (long)page);
    bare_call(SYS_close, fd, 0, 0, 0);
}

BARE static long populate(char *from, uint64_t len) {
    long result;
    do
        result = bare_call(SYS_madvise, (long)from, (long)len, MADV_POPULATE_WRITE, 0);
    while (result == -EINTR || result == -EAGAIN);
    return result;
}

BARE static void copy_piece(char *from, uint64_t len, bool can_populate) {
    if (can_populate && populate(from, len) == 0)
        return;
    for (uint64_t at = 0; at < len; at += PM_PAGE_SIZE)
        if (!can_populate)
            pm_private_copy_page(from + at);
        else if (populate(from + at, PM_PAGE_SIZE) != 0)
            force_page(from + at);
}

BARE static void copy_runs(const struct pm_private_run *run, unsigned count) {
    char probe[1];
    char *page = (char *)((uintptr_t)probe & ~(uintptr_t)(PM_PAGE_SIZE - 1));
    bool can_populate = populate(page, PM_PAGE_SIZE) == 0; // since Linux 5.14
    for (unsigned i = 0; i < count; i++)
        for (uint64_t at = 0; at < run[i].len; at += STEP)
            copy_piece((char *)pm_heap_at(run[i].offset + at),
                       run[i].len - at < STEP ? run[i].len - at : STEP, can_populate);
}

void pm_private_copy(void) {
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    copy_runs(run, count);
    pm_private_forget();
}

// ---- the copier ---------------------------------------------------------------------------------------

static struct {
    char stack[STACK_SIZE] __attribute__((aligned(16)));
    const struct pm_private_run *run;
    unsigned count;
    struct pm_gate *gate;
    struct timespec delay;
    _Atomic uint32_t tid;   // 0 when there is none (any more); by the kernel
    _Atomic uint32_t ready; // the kernel will tell its end
    _Atomic uint32_t hurry; // no delay any more
} copier;

BARE static void copier_main(void) {
    struct pm_gate *gate = copier.gate;
    bare_call(SYS_set_robust_list, (long)&gate->robust[1].head, sizeof gate->robust[1].head, 0, 0);
    atomic_store_explicit(&gate->word, (uint32_t)bare_call(SYS_gettid, 0, 0, 0, 0) | FUTEX_WAITERS,
                          memory_order_release);
    atomic_store_explicit(&copier.ready, 1, memory_order_release);
    bare_call(SYS_futex, (long)&copier.ready, FUTEX_WAKE_PRIVATE, 1, 0);
    bare_call(SYS_futex, (long)&copier.hurry, FUTEX_WAIT_PRIVATE, 0, (long)&copier.delay);
    copy_runs(copier.run, copier.count);
    atomic_store_explicit(&gate->word, 0, memory_order_release);
    bare_call(SYS_futex, (long)&gate->word, FUTEX_WAKE, 1, 0);
}

// Returns the thread's id, or a negative error. The new thread finds the function in a register that clone() does not
// use, and never returns from here.
static long start_copier(void (*run)(void)) {
    long flags = CLONE_VM | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                 CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    char *top = copier.stack + sizeof copier.stack;
    register _Atomic uint32_t *tid __asm__("r10") = &copier.tid;
    register long tls __asm__("r8") = 0;
    register void (*function)(void) __asm__("r9") = run;
    long result;
    __asm__ volatile("syscall\n\t"
                     "testq %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xorl %%ebp, %%ebp\n\t"
                     "callq *%%r9\n\t"
                     "movl %[leave], %%eax\n\t"
                     "xorl %%edi, %%edi\n\t"
                     "syscall\n\t"
                     "ud2\n"
                     "1:"
                     : "=a"(result)
                     : "a"((long)SYS_clone), "D"(flags), "S"(top), "d"(&copier.tid), "r"(tid),
                       "r"(tls), "r"(function), [leave] "i"(SYS_exit)
                     : "rcx", "r11", "memory");
    return result;
}

bool pm_private_copy_behind(struct pm_gate *gate, unsigned delay_us) {
    uint64_t all = ~0ull, mask; // libc's own functions leave its internal signals out
    copier.run = pm_private_runs(&copier.count);
    copier.gate = gate;
    copier.delay =
        (struct timespec){.tv_sec = delay_us / 1000000, .tv_nsec = delay_us % 1000000 * 1000};
    atomic_store_explicit(&copier.ready, 0, memory_order_relaxed);
    atomic_store_explicit(&copier.hurry, 0, memory_order_relaxed);
    bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&mask, sizeof mask);
    long tid = start_copier(copier_main);
    bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof mask);
    while (tid > 0 && atomic_load_explicit(&copier.ready, memory_order_acquire) == 0)
        pm_futex_wait(&copier.ready, 0);
    return tid > 0;
}

void pm_private_await(void) {
    uint32_t tid;
    int saved = errno;
    bool waited = false;
    atomic_store_explicit(&copier.hurry, 1, memory_order_release);
    if (atomic_load_explicit(&copier.tid, memory_order_acquire))
        pm_futex_wake(&copier.hurry, 1);
    // The kernel's wake-up at the thread's end is not a private one.
    while ((tid = atomic_load_explicit(&copier.tid, memory_order_acquire)) != 0)
        waited |= syscall(SYS_futex, &copier.tid, FUTEX_WAIT, tid, NULL, NULL, 0) == 0;
    if (waited) // by the kernel, which wakes one of those who wait
        syscall(SYS_futex, &copier.tid, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    errno = saved;
}

void pm_private_settle(void) {
    pm_private_await();
    if (copier.gate) {
        pm_gate_drop(copier.gate);
        copier.gate = NULL;
        pm_private_forget();
    }
}

// ---- from outside ---------------------------------------------------------------------------------------

#define BATCH 16 // few, for the process may be continued in between

// A byte of each page is stored as it is: nobody else stores to it, since all threads are stopped.
static bool copy_batch(pid_t pid, uint64_t offset, unsigned pages) {
    char bytes[BATCH];
    struct iovec local = {bytes, pages}, remote[BATCH];
    for (unsigned i = 0; i < pages; i++)
        remote[i] = (struct iovec){pm_heap_at(offset + i * PM_PAGE_SIZE), 1};
    return pm_os_state(pid) == 'T' &&
           process_vm_readv(pid, &local, 1, remote, pages, 0) == (ssize_t)pages &&
           process_vm_writev(pid, &local, 1, remote, pages, 0) == (ssize_t)pages &&
           pm_os_state(pid) == 'T';
}

bool pm_private_copy_stopped(pid_t pid) {
    unsigned count;
    bool mine = !pm_heap.persistent; // or of the child alone, from the same extents
    if (pm_os_state(pid) != 'T' || (!mine && !pm_private_find()))
        return false;
    const struct pm_private_run *run = pm_private_runs(&count);
    bool good = true;
    for (unsigned i = 0; good && i < count; i++)
        for (uint64_t at = 0; good && at < run[i].len; at += BATCH * PM_PAGE_SIZE) {
            uint64_t pages = (run[i].len - at) >> PM_PAGE_SHIFT;
            good = copy_batch(pid, run[i].offset + at, pages < BATCH ? (unsigned)pages : BATCH);
        }
    if (!mine)
        pm_private_forget();
    return good;
}
