// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "workers.h"

#include <stdatomic.h>
#include <sys/mman.h>

#include "base/geometry.h"
#include "base/os.h"

static size_t stack_size(void) {
    pthread_attr_t attr;
    size_t size = 0;
    if (pthread_attr_init(&attr) == 0) {
        pthread_attr_getstacksize(&attr, &size);
        pthread_attr_destroy(&attr);
    }
    size_t least = (size_t)256 << 10;
    return ((size > least ? size : least) + PM_PAGE_SIZE - 1) & ~(PM_PAGE_SIZE - 1);
}

bool pm_worker_start(struct pm_worker *worker, void *(*run)(void *arg), void *arg) {
    pthread_attr_t attr;
    size_t size = stack_size();
    worker->stack = pm_os_reserve(size);
    bool good = worker->stack && pthread_attr_init(&attr) == 0;
    if (good) {
        good = pthread_attr_setstack(&attr, worker->stack, size) == 0 &&
               pthread_create(&worker->thread, &attr, run, arg) == 0;
        pthread_attr_destroy(&attr);
    }
    if (!good && worker->stack)
        munmap(worker->stack, size);
    return good;
}

void pm_worker_join(struct pm_worker *worker) {
    pthread_join(worker->thread, NULL);
    munmap(worker->stack, stack_size());
}

// ---- jobs ---------------------------------------------------------------------------------------

#define THREADS PM_SHARDS

static struct {
    pm_job *work;
    void *arg;
    unsigned jobs;
    _Atomic unsigned next;
} all;

// Relaxed: starting and joining the threads orders what the jobs read and write.
static void work_off(bool caller) {
    unsigned number;
    while ((number = atomic_fetch_add_explicit(&all.next, 1, memory_order_relaxed)) < all.jobs)
        all.work(number, caller, all.arg);
}

static void *run_worker(void *unused) {
    (void)unused;
    work_off(false);
    return NULL;
}

void pm_workers_run(unsigned threads, unsigned jobs, pm_job *work, void *arg) {
    struct pm_worker worker[THREADS];
    unsigned started = 0;
    all.work = work;
    all.arg = arg;
    all.jobs = jobs;
    atomic_store_explicit(&all.next, 0, memory_order_relaxed);
    while (started < THREADS && started + 1 < threads && started + 1 < jobs &&
           pm_worker_start(&worker[started], run_worker, NULL))
        started++;
    work_off(true);
    for (unsigned i = 0; i < started; i++)
        pm_worker_join(&worker[i]);
}
