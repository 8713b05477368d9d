// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "helpers.h"

#include <linux/futex.h>
#include <sys/syscall.h>

#include "base/bare_thread.h"
#include "base/lock.h"
#include "base/nodes.h"
#include "threads/thread_memory.h"

#define STACK_BYTES ((size_t)64 << 10)

_Atomic bool pm_helpers_forbidden;

static struct {
    struct pm_thread_memory memory;
    _Atomic uint32_t id; // the kernel makes it 0 when the thread has ended; a futex
    uint32_t was;
} helper[PM_HELPERS];

// A bare thread is started without an argument. Each takes the next number; which thread has which
// does not matter.
static void (*task)(unsigned number);
static _Atomic unsigned next;

unsigned pm_helpers_markers(unsigned wanted) {
    unsigned markers = wanted ? wanted : pm_nodes_cores();
    return markers <= PM_HELPERS ? markers : PM_HELPERS + 1;
}

// The thread has its maker's variables at first.
static void run(void) {
    pm_locks_held = 0;
    pm_ranks_forget();
    task(atomic_fetch_add_explicit(&next, 1, memory_order_relaxed));
}

// It sees all stores from before it was made.
bool pm_helper_start(unsigned number, void (*work)(unsigned number)) {
    const void *used[] = {&pm_locks_held};
    if (number > PM_HELPERS || atomic_load_explicit(&pm_helpers_forbidden, memory_order_relaxed) ||
        !pm_thread_memory(&helper[number - 1].memory, STACK_BYTES, used, 1))
        return false;
    if (number == 1)
        atomic_store_explicit(&next, 1, memory_order_relaxed);
    task = work;
    const struct pm_thread_memory *m = &helper[number - 1].memory;
    long id = pm_bare_thread(run, m->stack_top, m->pointer, &helper[number - 1].id);
    helper[number - 1].was = (uint32_t)id;
    return id > 0;
}

// Not FUTEX_WAIT_PRIVATE, because the kernel's wake-up at the end of a thread is not private.
void pm_helper_join(unsigned number) {
    _Atomic uint32_t *id = &helper[number - 1].id;
    uint32_t seen;
    while ((seen = atomic_load_explicit(id, memory_order_acquire)) != 0)
        pm_bare_call6(SYS_futex, (long)id, FUTEX_WAIT, seen, 0, 0, 0);
    pm_bare_thread_leave(helper[number - 1].was);
}
