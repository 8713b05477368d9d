// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Part of a test library that is the whole of libpmalloc_preload.so: holds all threads again and
// again from a thread of its own. holder_start.c starts it.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "base/decay.h"
#include "state/phase.h"
#include "threads/hold.h"

#define PUBLIC __attribute__((visibility("default")))

// The program may look at its memory while it is held.
PUBLIC void (*holder_check)(void);
PUBLIC _Atomic unsigned holder_held, holder_failed;
PUBLIC void holder_start(void);

static uint64_t limit_ms = 2000, pause_us = 1000, hold_us = 200;

static void wait_us(uint64_t us) {
    const struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&time, NULL);
}

// No thread rests inside the allocator: the holder can take every lock.
static void check_lock(struct pm_lock *lock) {
    if (lock == &pm_age_lock) // pm_hold_all() has taken it
        return;
    if (!pm_trylock_raw(lock))
        abort();
    pm_unlock_raw(lock);
}

// Like PMAlloc's own threads, this one blocks all signals: they are for the program's threads.
static void *hold(void *unused) {
    sigset_t all;
    (void)unused;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (;;) {
        if (pm_hold_all(limit_ms)) {
            pm_process_each_lock(check_lock);
            if (hold_us)
                wait_us(hold_us);
            if (holder_check)
                holder_check();
            pm_release_all();
            holder_held++;
        } else {
            holder_failed++;
        }
        wait_us(pause_us);
    }
    return NULL;
}

static void set(const char *name, uint64_t *value) {
    const char *text = getenv(name);
    if (text)
        *value = strtoull(text, NULL, 10);
}

void holder_start(void) {
    pthread_t thread;
    set("HOLD_LIMIT_MS", &limit_ms);
    set("HOLD_PAUSE_US", &pause_us);
    set("HOLD_US", &hold_us);
    pm_hold_keep_sight(true);
    if (!pm_hold_prepare() || pthread_create(&thread, NULL, hold, NULL) != 0)
        abort();
}
