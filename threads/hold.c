// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "hold.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <ucontext.h>

#include "base/cancel.h"
#include "base/decay.h"
#include "base/library.h"
#include "base/lock.h"
#include "base/proc.h"
#include "base/signal_stack.h"
#include "calls.h"
#include "roll.h"
#include "tasks.h"
#include "thread_list.h"
#include "threads.h"

// ---- where a thread may wait --------------------------------------------------------------------

#define CALL_BYTES 2 // of the instruction of a system call

// Right behind that instruction, as a wrapper of libc's would be: what comes in between is in a
// fast path never.
static bool has_called(uintptr_t at) {
    const unsigned char *before = (const unsigned char *)at - CALL_BYTES;
    return before[0] == 0x0f && before[1] == 0x05;
}

// A thread rests in the middle of the program's own code: it waits for nothing.
static _Atomic bool interrupted;

// Whether a thread that never took a lock waited for something else than an unseen one. The kernel
// begins a call again, or has ended it early; RCX is what the instruction has left there.
static bool was_asleep(const greg_t *reg) {
    if (reg[REG_RCX] == reg[REG_RIP] + CALL_BYTES)
        return reg[REG_RAX] != SYS_futex;
    return reg[REG_RAX] == -EINTR && has_called((uintptr_t)reg[REG_RIP]);
}

// A thread rests in what a slow path of the library calls, where that holds no lock.
static _Atomic bool met_inside;

static bool rests_at(const ucontext_t *context) {
    if (pm_inside)
        atomic_store_explicit(&met_inside, true, memory_order_relaxed);
    pm_calls_interrupted(was_asleep(context->uc_mcontext.gregs));
    if (!pm_calls_within((void *)context->uc_mcontext.gregs[REG_RSP]))
        atomic_store_explicit(&interrupted, true, memory_order_relaxed);
    return true;
}

// Runs in the signal handler of the thread. A slow path holds a lock most of the time, and makes
// system calls, through libc or without it. A fast path holds none, and lies in our code.
static bool is_outside(void *context) {
    static _Atomic int program = -1;
    uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (pm_nested())
        return false;
    if (!pm_library_runs(at) || pm_library_calls(at) || has_called(at))
        return rests_at(context);
    if (program < 0)
        program = pm_library_is_program(); // as in unit tests: then its code tells nothing
    return program && rests_at(context);
}

// ---- hold and release ---------------------------------------------------------------------------

bool pm_hold_keep_sight(bool alone) {
    if (alone)
        pm_thread_list_begin();
    return pm_proc_keep();
}

void pm_hold_forked(bool commits) {
    if (commits)
        pm_hold_keep_sight(true);
    else
        pm_proc_drop();
}

bool pm_hold_prepare(void) {
    pm_signal_stack_give();
    return pm_threads_prepare() && pm_calls_record();
}

// Changed by a holder alone, and there is one at a time (leaks.c).
static _Atomic(void (*)(const void *)) noting;

static bool notes(void *context) {
    void (*rests)(const void *) = atomic_load_explicit(&noting, memory_order_acquire);
    if (!is_outside(context))
        return false;
    rests(context);
    return true;
}

// Changed by the holder alone.
static bool for_program;

static bool is_within_programs(void) { return for_program && pm_threads_holder(); }

static bool hold(uint64_t timeout_ms, pm_threads_rests *rests) {
    int saved = errno;
    if (is_within_programs()) {
        pm_lock(&pm_age_lock);
        return true;
    }
    atomic_store_explicit(&interrupted, false, memory_order_relaxed);
    atomic_store_explicit(&met_inside, false, memory_order_relaxed);
    bool held = pm_threads_hold(timeout_ms, rests);
    // The thread of PMALLOC_BACKGROUND hears no signal. Of the others none holds a lock.
    if (held) {
        for_program = false;
        pm_lock(&pm_age_lock);
    }
    errno = saved;
    return held;
}

static void find_busy(pid_t id, void *arg) {
    *(bool *)arg |= !pm_calls_waits(id) && !pm_task_is_dead(id);
}

// Each thread's release of its record comes before our acquire of it.
bool pm_hold_all_wait(void) {
    bool busy = atomic_load_explicit(&interrupted, memory_order_relaxed);
    return !busy && pm_tasks_each_other(find_busy, &busy) && !busy;
}

bool pm_hold_met_inside(void) { return atomic_load_explicit(&met_inside, memory_order_relaxed); }

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
    pm_roll_each(each_memory_of, &memory);
}

void pm_release_all(void) {
    int saved = errno;
    pm_unlock(&pm_age_lock);
    if (!is_within_programs())
        pm_threads_release();
    errno = saved;
}

bool pm_hold_for_program(uint64_t timeout_ms) {
    int saved = errno;
    atomic_store_explicit(&met_inside, false, memory_order_relaxed);
    bool held = pm_hold_prepare() && pm_threads_hold(timeout_ms, is_outside);
    for_program |= held;
    errno = saved;
    return held;
}

bool pm_release_for_program(void) {
    int saved = errno;
    bool held = is_within_programs();
    for_program &= !held;
    if (held)
        pm_threads_release();
    errno = saved;
    return held;
}

// Who makes a commit blocks all signals.
bool pm_hold_may_rest(const void *context) {
    return is_outside((void *)(uintptr_t)context) && !pm_threads_holder();
}
