// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "gate.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"
#include "os.h"

#define TICK_NS 20000000

struct pm_gate *pm_gate_new(void) {
    struct pm_gate *gate = mmap(NULL, PM_PAGE_SIZE, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (gate == MAP_FAILED)
        return NULL;
    for (unsigned i = 0; i < 2; i++) {
        struct robust_list_head *head = &gate->robust[i].head;
        head->list.next = &gate->robust[i].node;
        head->futex_offset = (char *)&gate->word - (char *)&gate->robust[i].node;
        gate->robust[i].node.next = &head->list;
    }
    atomic_store_explicit(&gate->word, PM_GATE_NEW, memory_order_relaxed);
    return gate;
}

void pm_gate_drop(struct pm_gate *gate) { munmap(gate, PM_PAGE_SIZE); }

struct pm_gate_hold pm_gate_take(struct pm_gate *gate) {
    struct pm_gate_hold hold = {0};
    if (syscall(SYS_get_robust_list, 0, &hold.list, &hold.len) != 0 ||
        syscall(SYS_set_robust_list, &gate->robust[0].head, sizeof gate->robust[0].head) != 0)
        hold.len = 0; // its end will be noticed later
    // Release: what the waiting side finds beside the word.
    atomic_store_explicit(&gate->word, (uint32_t)syscall(SYS_gettid) | FUTEX_WAITERS,
                          memory_order_release);
    return hold;
}

void pm_gate_open(struct pm_gate *gate) {
    // Release: all copies are made. No wake-up is private, for the other side is another process.
    atomic_store_explicit(&gate->word, 0, memory_order_release);
    syscall(SYS_futex, &gate->word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void pm_gate_leave(struct pm_gate_hold hold) {
    if (hold.len)
        syscall(SYS_set_robust_list, hold.list, hold.len);
}

void pm_gate_wait(struct pm_gate *gate, bool (*give_up)(struct pm_gate *gate)) {
    const struct timespec tick = {.tv_nsec = TICK_NS};
    uint64_t asked = pm_os_now_ms();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&gate->word, memory_order_acquire);
        if (seen == 0 || seen & FUTEX_OWNER_DIED)
            return;
        syscall(SYS_futex, &gate->word, FUTEX_WAIT, seen, &tick, NULL, 0);
        uint64_t now = pm_os_now_ms();
        if (now - asked < TICK_NS / 1000000)
            continue;
        asked = now;
        if (give_up(gate))
            return;
    }
}
