// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "sections.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/bare_thread.h"
#include "base/cancel.h"
#include "base/lock.h"
#include "base/os.h"
#include "sections_door.h"
#include "tasks.h"

// The gate of another process that was killed: nobody waits longer.
#define ABANDONED_MS 1000
#define TICK_NS 500000

_Atomic uint32_t pm_gate_word __attribute__((aligned(64))) = PM_GATE_NONE;
_Atomic uint32_t pm_sections_bell __attribute__((aligned(64)));
static _Atomic bool listens;
static _Atomic uint32_t at_gate;
static _Atomic uint32_t let_through; // how often who was at the gate was

// By thread id, `sections` of the record.
static _Atomic uint64_t *excused;

#ifdef __GLIBC__
#define OWNER ((int64_t)offsetof(struct __pthread_mutex_s, __owner))
#else
#define OWNER ((int64_t)-1)
#endif

const struct pm_sections_door *pm_sections_open_door(void) {
    static struct pm_sections_door door;
    door =
        (struct pm_sections_door){&pm_gate_word, &at_gate, pm_calls_records(), OWNER, &let_through};
    return &door;
}

void pm_sections_begin(void) {
    if (!excused)
        excused = pm_os_reserve(PM_TASKS * sizeof *excused);
    if (pm_calls_recorded && excused && !pm_sections_counted())
        atomic_store(&pm_gate_word, PM_GATE_OPEN);
}

// Another process has asked for it.
__attribute__((noinline, cold)) static void begin_for_other(void) {
    uint32_t asked = PM_GATE_ASKED;
    atomic_compare_exchange_strong(&pm_gate_word, &asked,
                                   pm_calls_have_records() ? PM_GATE_OPEN : PM_GATE_NONE);
}

// glibc notes the owner after it has taken the lock, and before it returns. The memory may be no
// more, where a thread has given back a lock unseen.
static bool owns(pid_t id, uintptr_t mutex) {
#ifdef __GLIBC__
    uint32_t owner = 0;
    bool gone;
    const char *at = (const char *)mutex + OWNER;
    bool known = pm_task_peek(id, at, &owner, sizeof owner, &gone);
    return known ? owner == (uint32_t)id : !gone;
#else
    (void)id, (void)mutex;
    return true;
#endif
}

bool pm_sections_inside(pid_t id, const struct pm_call_record *of) {
    uint32_t depth = pm_sections_depth(atomic_load_explicit(&of->sections, memory_order_acquire));
    uintptr_t lock = atomic_load_explicit(&of->lock, memory_order_relaxed);
    return depth > 1 || (depth == 1 && (lock & PM_SECTION_SURE || owns(id, lock)));
}

void pm_sections_excuse(pid_t id, uint64_t sections) {
    atomic_store_explicit(&excused[id], sections, memory_order_relaxed);
}

bool pm_sections_excused(pid_t id, uint64_t sections) {
    uint64_t known = excused ? atomic_load_explicit(&excused[id], memory_order_relaxed) : 0;
    return pm_sections_number(known) == pm_sections_number(sections) &&
           pm_sections_depth(sections) <= pm_sections_depth(known);
}

// A child that shares this memory or has a copy of it (vfork, _Fork) has no part in commits, and in
// a copy the gate may stay closed. A handler that has interrupted the allocator may not wait.
static bool waits(void) {
    struct pm_call_record *own = pm_calls_own ? pm_calls_own : pm_calls_find_own();
    uint64_t sections = atomic_load_explicit(&own->sections, memory_order_relaxed);
    pid_t id = (pid_t)pm_bare_call(SYS_gettid, 0, 0, 0, 0);
    if (pm_sections_depth(sections) && !pm_sections_excused(id, sections))
        return false;
    return !pm_nested() && pm_bare_call(SYS_getpid, 0, 0, 0, 0) == pm_calls_process;
}

// It waits in a call that is on record: to hold it takes no signal.
static void wait_for_holder(void) {
    struct pm_call call = {.by_futex = true};
    pm_call_enter(&call);
    pm_bare_call(SYS_futex, (long)&pm_gate_word, FUTEX_WAIT_PRIVATE, PM_GATE_CLOSED, 0);
    pm_call_leave(&call);
}

// Another process wakes nobody here, and may have been killed.
static void wait_for_other(uint64_t since) {
    const struct timespec tick = {0, TICK_NS};
    uint32_t closed = PM_GATE_CLOSED;
    pm_bare_call(SYS_futex, (long)&pm_gate_word, FUTEX_WAIT_PRIVATE, PM_GATE_CLOSED, (long)&tick);
    if (pm_os_now_ms() - since > ABANDONED_MS)
        atomic_compare_exchange_strong(&pm_gate_word, &closed, PM_GATE_NONE);
}

void pm_sections_wait(void) {
    if (atomic_load(&pm_gate_word) == PM_GATE_ASKED)
        begin_for_other();
    if (atomic_load(&pm_gate_word) != PM_GATE_CLOSED || !waits())
        return;
    uint32_t turn = atomic_load(&let_through);
    atomic_fetch_add(&at_gate, 1);
    for (uint64_t since = pm_os_now_ms();
         atomic_load(&pm_gate_word) == PM_GATE_CLOSED && atomic_load(&let_through) == turn;)
        if (pm_calls_recorded)
            wait_for_holder();
        else
            wait_for_other(since);
    atomic_fetch_sub(&at_gate, 1);
}

void pm_sections_let_through(void) { atomic_fetch_add(&let_through, 1); }

uint32_t pm_sections_at_gate(void) { return atomic_load(&at_gate); }

void pm_sections_listen(bool on) { atomic_store(&listens, on); }

void pm_sections_ring(void) {
    if (!atomic_load_explicit(&listens, memory_order_relaxed) || !atomic_exchange(&listens, false))
        return;
    atomic_fetch_add(&pm_sections_bell, 1);
    pm_bare_call(SYS_futex, (long)&pm_sections_bell, FUTEX_WAKE_PRIVATE, 1, 0);
}

void pm_sections_no_more(void) {
    if (pm_sections_counted() && pm_calls_own)
        atomic_store_explicit(&pm_calls_own->answers, true, memory_order_relaxed);
}

void pm_sections_forked(void) {
    if (pm_sections_counted())
        atomic_store_explicit(&pm_gate_word, pm_calls_recorded ? PM_GATE_OPEN : PM_GATE_NONE,
                              memory_order_relaxed);
    atomic_store_explicit(&at_gate, 0, memory_order_relaxed);
    atomic_store_explicit(&listens, false, memory_order_relaxed);
}
