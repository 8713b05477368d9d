// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "thread_list.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/os.h"

#define SLOTS (1u << 18)
#define TRIES 16u // slots of ended threads that are looked for before a new one is used

static struct pm_thread_slot *slots; // NULL: no record
static _Atomic uint32_t used;        // slots that have ever had a thread
static _Atomic uint32_t hint;
static _Atomic bool incomplete;

// By the call that a hold needs as well (threads.c): a filter of the program's allows that one.
bool pm_thread_has_ended(pid_t id) {
    int saved = errno;
    siginfo_t none = {.si_code = SI_QUEUE};
    bool gone = syscall(SYS_rt_tgsigqueueinfo, getpid(), id, 0, &none) != 0 && errno == ESRCH;
    errno = saved;
    return gone;
}

bool pm_thread_list_begin(void) {
    if (!slots)
        slots = pm_os_reserve(SLOTS * sizeof *slots);
    if (!slots)
        return false;
    uint32_t count = atomic_load_explicit(&used, memory_order_relaxed);
    for (uint32_t i = 1; i < count; i++)
        atomic_store_explicit(&slots[i].id, 0, memory_order_relaxed);
    atomic_store_explicit(&slots[0].id, (int32_t)syscall(SYS_gettid), memory_order_relaxed);
    atomic_store_explicit(&used, 1, memory_order_release);
    atomic_store_explicit(&incomplete, false, memory_order_relaxed);
    return true;
}

static bool claim(struct pm_thread_slot *slot) {
    int32_t id = atomic_load_explicit(&slot->id, memory_order_relaxed);
    return id >= 0 && (id == 0 || pm_thread_has_ended(id)) &&
           atomic_compare_exchange_strong(&slot->id, &id, -1);
}

struct pm_thread_slot *pm_thread_list_claim(void) {
    if (!slots)
        return NULL;
    uint32_t count = atomic_load_explicit(&used, memory_order_relaxed);
    for (uint32_t i = 0; i < TRIES && i < count; i++) {
        uint32_t at = atomic_fetch_add_explicit(&hint, 1, memory_order_relaxed) % count;
        if (claim(&slots[at]))
            return &slots[at];
    }
    while (count < SLOTS)
        if (atomic_compare_exchange_weak(&used, &count, count + 1))
            return claim(&slots[count]) ? &slots[count] : NULL;
    atomic_store(&incomplete, true);
    return NULL;
}

void pm_thread_list_enter(struct pm_thread_slot *slot) {
    atomic_store(&slot->id, (int32_t)syscall(SYS_gettid));
}

void pm_thread_list_add(void) {
    struct pm_thread_slot *slot = pm_thread_list_claim();
    if (slot)
        pm_thread_list_enter(slot);
}

void pm_thread_list_drop(struct pm_thread_slot *slot) { atomic_store(&slot->id, 0); }

bool pm_thread_list_each(bool (*each)(pid_t id, void *arg), void *arg) {
    if (!slots || atomic_load(&incomplete))
        return false;
    uint32_t count = atomic_load(&used);
    for (uint32_t i = 0; i < count; i++) {
        int32_t id = atomic_load(&slots[i].id);
        if (id <= 0)
            continue;
        if (pm_thread_has_ended(id))
            atomic_compare_exchange_strong(&slots[i].id, &id, 0);
        else if (!each(id, arg))
            break;
    }
    return true;
}
