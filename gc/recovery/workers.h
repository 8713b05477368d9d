// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads of recovery. They end with it.
#ifndef PM_WORKERS_H
#define PM_WORKERS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

struct pm_worker {
    pthread_t thread;
    void *stack;
};

// Starts a thread on a stack that we map, as large as libc's would be. libc would keep its own
// stack mapped after the thread has ended. False: it cannot be started.
bool pm_worker_start(struct pm_worker *worker, void *(*run)(void *arg), void *arg);
void pm_worker_join(struct pm_worker *worker);

// Calls `work` for each number below `jobs`, on at most `threads` threads. The caller is one of
// them, and does all of it where no other can be started. `caller`: it is the caller's.
typedef void pm_job(unsigned number, bool caller, void *arg);
void pm_workers_run(unsigned threads, unsigned jobs, pm_job *work, void *arg);

#endif
