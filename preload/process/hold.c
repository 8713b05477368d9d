// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "hold.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <ucontext.h>

#include "base/calls.h"
#include "base/cancel.h"
#include "base/lock.h"
#include "base/tasks.h"
#include "base/threads.h"
#include "blocks/age.h"

// ---- where a thread may wait --------------------------------------------------------------------

// The linker's names for the start of this library, and the end of its code.
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[];

// Whether this is a program that the allocator is linked into, as unit tests are. Then its code
// tells nothing.
static bool is_program(void) {
    uintptr_t entry = getauxval(AT_ENTRY);
    return entry - (uintptr_t)__ehdr_start < (uintptr_t)(etext - __ehdr_start);
}

// Runs in the signal handler of the thread. A slow path holds a lock most of the time, and calls
// libc. A fast path holds none, and lies in our code.
static bool is_outside(void *context) {
    static _Atomic int program = -1;
    uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (pm_nested())
        return false;
    if (at - (uintptr_t)__ehdr_start >= (uintptr_t)(etext - __ehdr_start))
        return true;
    if (program < 0)
        program = is_program();
    return program;
}

// ---- hold and release ---------------------------------------------------------------------------

bool pm_hold_prepare(void) { return pm_calls_record(); }

// Changed by a holder alone, and there is one at a time (leaks.c).
static _Atomic(void (*)(const void *)) noting;

static bool notes(void *context) {
    void (*rests)(const void *) = atomic_load_explicit(&noting, memory_order_acquire);
    if (!is_outside(context))
        return false;
    rests(context);
    return true;
}

static bool hold(uint64_t timeout_ms, pm_threads_rests *rests) {
    int saved = errno;
    bool held = pm_threads_hold(timeout_ms, rests);
    // The thread of PMALLOC_BACKGROUND hears no signal. Of the others none holds a lock.
    if (held)
        pm_lock(&pm_age_lock);
    errno = saved;
    return held;
}

bool pm_hold_all(uint64_t timeout_ms) { return hold(timeout_ms, is_outside); }

bool pm_hold_all_and(uint64_t timeout_ms, void (*rests)(const void *context)) {
    atomic_store_explicit(&noting, rests, memory_order_release);
    return hold(timeout_ms, notes);
}

struct memory {
    void (*each)(void *at, size_t len, void *arg);
    void *arg;
};

static void each_memory_of(pid_t id, void *arg) {
    const struct memory *memory = arg;
    pm_calls_each_memory(id, memory->each, memory->arg);
}

void pm_hold_each_memory(void (*each)(void *at, size_t len, void *arg), void *arg) {
    struct memory memory = {each, arg};
    pm_tasks_each_other(each_memory_of, &memory);
}

void pm_release_all(void) {
    int saved = errno;
    pm_unlock(&pm_age_lock);
    pm_threads_release();
    errno = saved;
}
