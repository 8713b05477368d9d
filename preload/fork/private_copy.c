// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makes the kernel copy the pages of a process's private mappings, before another process changes
// the file.
//
// The copier is a bare thread without thread-local storage of its own (base/bare_thread.h), so it
// calls no function of libc.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/bare_thread.h"
#include "base/lock.h"
#include "base/os.h"
#include "base/populate.h"
#include "fork_gate.h"
#include "media/heap.h"
#include "private.h"

#define STEP ((uint64_t)2 << 20)
#define STACK_SIZE 8192

// ---- pages --------------------------------------------------------------------------------------

// Copies a page that the program has made unwritable. The kernel stores to such a page if asked
// through /proc/thread-self/mem.
PM_BARE static void force_page(char *page) {
    char byte;
    long fd = pm_bare_call(SYS_open, (long)"/proc/thread-self/mem", O_RDWR | O_CLOEXEC, 0, 0);
    if (fd < 0)
        return;
    if (pm_bare_call(SYS_pread64, fd, (long)&byte, 1, (long)page) == 1)
        pm_bare_call(SYS_pwrite64, fd, (long)&byte, 1, (long)page);
    pm_bare_call(SYS_close, fd, 0, 0, 0);
}

// `can_store`: pm_populate() can do it as stores would. Where it does not, the page is unwritable.
PM_BARE static void copy_page(char *page, bool can_store) {
    long result = pm_populate(page, PM_PAGE_SIZE, MADV_POPULATE_WRITE);
    if (result != 0 && (can_store || pm_populate_refused(result)))
        force_page(page);
    else if (result != 0)
        pm_os_copy_page(page);
}

PM_BARE static void copy_piece(char *from, uint64_t len, bool can_store) {
    if (pm_populate(from, len, MADV_POPULATE_WRITE) == 0)
        return;
    for (uint64_t at = 0; at < len; at += PM_PAGE_SIZE)
        copy_page(from + at, can_store);
}

PM_BARE static void copy_runs(const struct pm_private_run *run, unsigned count) {
    char own[1];
    char *page = (char *)((uintptr_t)own & ~(uintptr_t)(PM_PAGE_SIZE - 1));
    bool can_store = pm_populate(page, PM_PAGE_SIZE, MADV_POPULATE_WRITE) == 0;
    for (unsigned i = 0; i < count; i++)
        for (uint64_t at = 0; at < run[i].len; at += STEP)
            copy_piece((char *)pm_heap_at(run[i].offset + at),
                       run[i].len - at < STEP ? run[i].len - at : STEP, can_store);
}

void pm_private_copy(void) {
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    copy_runs(run, count);
    pm_private_forget();
}

// ---- the copier ---------------------------------------------------------------------------------

static struct {
    char stack[STACK_SIZE] __attribute__((aligned(16)));
    const struct pm_private_run *run;
    unsigned count;
    struct pm_fork_gate *gate;
    struct timespec delay;
    _Atomic uint32_t tid;   // the copier's thread id; the kernel stores 0 when the copier has ended
    _Atomic uint32_t left;  // the same; 0 only when the process has a thread less
    _Atomic uint32_t ready; // 1: the copier has taken the gate: the kernel reports its end
    _Atomic uint32_t hurry; // 1: the copier must not delay any longer
} copier;

PM_BARE static void copier_main(void) {
    struct pm_fork_gate *gate = copier.gate;
    pm_bare_call(SYS_set_robust_list, (long)&gate->robust[1].head, sizeof gate->robust[1].head, 0,
                 0);
    atomic_store_explicit(&gate->word,
                          (uint32_t)pm_bare_call(SYS_gettid, 0, 0, 0, 0) | FUTEX_WAITERS,
                          memory_order_release);
    atomic_store_explicit(&copier.ready, 1, memory_order_release);
    pm_bare_call(SYS_futex, (long)&copier.ready, FUTEX_WAKE_PRIVATE, 1, 0);
    pm_bare_call(SYS_futex, (long)&copier.hurry, FUTEX_WAIT_PRIVATE, 0, (long)&copier.delay);
    copy_runs(copier.run, copier.count);
    atomic_store_explicit(&gate->word, 0, memory_order_release);
    pm_bare_call(SYS_futex, (long)&gate->word, FUTEX_WAKE, 1, 0);
}

bool pm_private_start_copier(struct pm_fork_gate *gate, unsigned delay_us) {
    copier.run = pm_private_runs(&copier.count);
    copier.gate = gate;
    copier.delay =
        (struct timespec){.tv_sec = delay_us / 1000000, .tv_nsec = delay_us % 1000000 * 1000};
    atomic_store_explicit(&copier.ready, 0, memory_order_relaxed);
    atomic_store_explicit(&copier.hurry, 0, memory_order_relaxed);
    long tid = pm_bare_thread(copier_main, copier.stack + sizeof copier.stack, NULL, &copier.tid);
    while (tid > 0 && atomic_load_explicit(&copier.ready, memory_order_acquire) == 0)
        pm_futex_wait(&copier.ready, 0);
    atomic_store_explicit(&copier.left, tid > 0 ? (uint32_t)tid : 0, memory_order_relaxed);
    return tid > 0;
}

void pm_private_await(void) {
    uint32_t tid;
    int saved = errno;
    bool waited = false;
    atomic_store_explicit(&copier.hurry, 1, memory_order_release);
    if (atomic_load_explicit(&copier.tid, memory_order_acquire))
        pm_futex_wake(&copier.hurry, 1);
    // Not FUTEX_WAIT_PRIVATE, because the kernel's wake-up at the end of a thread is not private.
    while ((tid = atomic_load_explicit(&copier.tid, memory_order_acquire)) != 0)
        waited |= syscall(SYS_futex, &copier.tid, FUTEX_WAIT, tid, NULL, NULL, 0L) == 0;
    if (waited) // the kernel has woken one waiting thread; wake the others
        syscall(SYS_futex, &copier.tid, FUTEX_WAKE, INT_MAX, NULL, NULL, 0L);
    if ((tid = atomic_load_explicit(&copier.left, memory_order_relaxed)) != 0) {
        pm_bare_thread_leave(tid);
        atomic_store_explicit(&copier.left, 0, memory_order_relaxed);
    }
    errno = saved;
}

void pm_private_finish_copy(void) {
    pm_private_await();
    pm_fork_gate_drop(copier.gate);
    pm_private_forget();
}

// ---- from outside -------------------------------------------------------------------------------

#define BATCH 16 // pages; few, because the process may be continued at any time

// Stores the same value to a byte of each page, so that the kernel copies the page. All threads of
// the process are stopped, so none of them stores there meanwhile.
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
    // If this process has private memory too, the runs are known. Else they are found anew.
    bool mine = !pm_heap_on_media();
    if (pm_os_state(pid) != 'T' || (!mine && !pm_private_find(true)))
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
