// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which threads are registered, for who holds one of them.
#ifndef PM_BOEHM_SUSPEND_H
#define PM_BOEHM_SUSPEND_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

// The calling thread. One that ends stays registered until it is joined, unless it is detached.
void pm_gc_threads_add(bool detached);
void pm_gc_threads_end(void);
void pm_gc_threads_remove(void);
// What pm_gc_threads_joined() needs to know from before the join.
uint32_t pm_gc_threads_serial(pthread_t thread);
void pm_gc_threads_joined(pthread_t thread, uint32_t serial);
void pm_gc_threads_detached(pthread_t thread);

extern int pm_gc_suspend_signal;

#endif
