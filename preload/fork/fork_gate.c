// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "fork_gate.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/os.h"
#include "media/format.h"

#define TICK_NS 20000000

struct pm_fork_gate *pm_fork_gate_new(void) {
    struct pm_fork_gate *gate =
        mmap(pm_os_place(PM_PAGE_SIZE), PM_PAGE_SIZE, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (gate == MAP_FAILED)
        return NULL;
    for (unsigned i = 0; i < 2; i++) {
        struct robust_list_head *head = &gate->robust[i].head;
        head->list.next = &gate->robust[i].node;
        head->futex_offset = (char *)&gate->word - (char *)&gate->robust[i].node;
        gate->robust[i].node.next = &head->list;
    }
    atomic_store_explicit(&gate->word, PM_FORK_GATE_NEW, memory_order_relaxed);
    return gate;
}

void pm_fork_gate_drop(struct pm_fork_gate *gate) { munmap(gate, PM_PAGE_SIZE); }

struct pm_fork_gate_hold pm_fork_gate_take(struct pm_fork_gate *gate) {
    struct pm_fork_gate_hold hold = {0};
    if (syscall(SYS_get_robust_list, 0, &hold.list, &hold.len) != 0 ||
        syscall(SYS_set_robust_list, &gate->robust[0].head, sizeof gate->robust[0].head) != 0)
        hold.len = 0; // the kernel will not report our end: the other process looks now and then
    // Release: the waiting process also sees what was stored to the gate before.
    atomic_store_explicit(&gate->word, (uint32_t)syscall(SYS_gettid) | FUTEX_WAITERS,
                          memory_order_release);
    return hold;
}

void pm_fork_gate_open(struct pm_fork_gate *gate) {
    // Release: a process that sees the open gate also sees that every page is copied. The wake-up
    // is not FUTEX_PRIVATE, because another process waits.
    atomic_store_explicit(&gate->word, 0, memory_order_release);
    syscall(SYS_futex, &gate->word, FUTEX_WAKE, 1, NULL, NULL, 0L);
}

void pm_fork_gate_leave(struct pm_fork_gate_hold hold) {
    if (hold.len)
        syscall(SYS_set_robust_list, hold.list, hold.len);
}

void pm_fork_gate_wait(struct pm_fork_gate *gate, bool (*give_up)(struct pm_fork_gate *gate)) {
    const struct timespec tick = {.tv_nsec = TICK_NS};
    uint64_t asked = pm_os_now_ms();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&gate->word, memory_order_acquire);
        if (seen == 0 || seen & FUTEX_OWNER_DIED)
            return;
        syscall(SYS_futex, &gate->word, FUTEX_WAIT, seen, &tick, NULL, 0L);
        uint64_t now = pm_os_now_ms();
        if (now - asked < TICK_NS / 1000000)
            continue;
        asked = now;
        if (give_up(gate))
            return;
    }
}
