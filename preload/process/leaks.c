// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "leaks.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/calls.h"
#include "base/cancel.h"
#include "base/lock.h"
#include "base/options.h"
#include "base/os.h"
#include "base/own_memory.h"
#include "base/tasks.h"
#include "base/threads.h"
#include "blocks/age.h"
#include "hold.h"
#include "live/process_memory.h"
#include "media/heap.h"
#include "stacks.h"

#define PATIENCE_MS 5000
#define SITES_SAID 20u
#define THREADS 65536u

// What is known of the threads: from their signal handlers, from the calls that they sleep in, or
// from the kernel. The first is the thread that looks.
static struct known {
    _Atomic unsigned count;
    struct {
        pid_t id;
        uintptr_t stack;     // its stack pointer
        const void *context; // the registers of a thread that was interrupted; else NULL
    } thread[THREADS];
    uintptr_t stacks[THREADS];
} * known;

// ---- threads ------------------------------------------------------------------------------------

static void know(pid_t id, uintptr_t stack, const void *context) {
    unsigned i = atomic_fetch_add_explicit(&known->count, 1, memory_order_relaxed);
    if (i >= THREADS) // then its whole stack counts
        return;
    known->thread[i].id = id;
    known->thread[i].stack = stack;
    known->thread[i].context = context;
}

static unsigned known_count(void) {
    unsigned count = atomic_load_explicit(&known->count, memory_order_acquire);
    return count < THREADS ? count : THREADS;
}

// In the handler of a thread that is held.
static void note(const void *context) {
    const ucontext_t *u = context;
    know((pid_t)syscall(SYS_gettid), (uintptr_t)u->uc_mcontext.gregs[REG_RSP], context);
}

// A thread that waits in the kernel for something else, such as the end of a vfork(). The file has
// the stack pointer as the last word but one. 0: it cannot be found out.
static uintptr_t stack_in_kernel(pid_t id) {
    char text[256];
    bool gone;
    if (!pm_task_read(id, "syscall", text, sizeof text, &gone))
        return 0;
    char *last = strrchr(text, ' ');
    if (!last)
        return 0;
    *last = '\0';
    last = strrchr(text, ' ');
    return last ? strtoull(last + 1, NULL, 16) : 0;
}

static void find_sleeper(pid_t id, void *unused) {
    (void)unused;
    for (unsigned i = 0, count = known_count(); i < count; i++)
        if (known->thread[i].id == id)
            return;
    const void *frame = pm_calls_frame(id);
    uintptr_t stack = frame ? (uintptr_t)frame : stack_in_kernel(id);
    if (stack)
        know(id, stack, NULL);
}

// ---- roots --------------------------------------------------------------------------------------

static void root(const void *at, size_t len, void *unused) {
    (void)unused;
    pm_live_root(at, len);
}

// The kernel's layout of the registers that a signal saves (uapi/asm/sigcontext.h).
#define FX_BYTES 512u
#define FX_RESERVED 464u // then a magic number, three words on the size of all that follows
#define FX_MAGIC 0x46505853u

static void root_registers(const void *context) {
    const ucontext_t *u = context;
    const char *state = (const char *)u->uc_mcontext.fpregs;
    uint32_t extended[5];
    pm_live_root(u->uc_mcontext.gregs, sizeof u->uc_mcontext.gregs);
    if (!state)
        return;
    memcpy(extended, state + FX_RESERVED, sizeof extended);
    pm_live_root(state, extended[0] == FX_MAGIC ? extended[4] : FX_BYTES);
}

static int find_roots(struct pm_error *err) {
    unsigned count = known_count();
    for (unsigned i = 0; i < count; i++) {
        // A stack may be a block of the heap, as a coroutine's. Then the whole block counts.
        known->stacks[i] = known->thread[i].stack;
        pm_live_root(&known->stacks[i], sizeof known->stacks[i]);
        if (known->thread[i].context)
            root_registers(known->thread[i].context);
    }
    for (unsigned i = 0; pm_heap_is_held() && i < PM_ROOT_SLOTS; i++) {
        uint64_t slot = pm_heap_slot(i);
        pm_live_root(&slot, sizeof slot);
    }
    return pm_process_memory(known->stacks, count, root, NULL, err);
}

// ---- with everything held -----------------------------------------------------------------------

// By site, where stacks are recorded.
static struct pm_leak_row *site;

static void add(void *block, size_t bytes, void *leaks) {
    pm_leaks_add(leaks, block, bytes);
    if (!site)
        return;
    struct pm_leak_row *row = &site[pm_stacks_site(block)];
    row->blocks++;
    row->bytes += bytes;
    row->example = block;
}

static int mark_and_count(struct pm_leaks *leaks, struct pm_live_sum *in_use,
                          struct pm_error *err) {
    int status = pm_live_begin(err);
    if (status != PM_OK)
        return status;
    status = find_roots(err);
    pm_live_mark();
    *in_use = pm_live_unreached(add, leaks); // also after a failure: it removes the marks
    pm_live_end();
    return status;
}

static int find_alone(struct pm_leaks *leaks, struct pm_live_sum *in_use, struct pm_error *err) {
    uint64_t all = ~0ull, before;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
    pm_lock(&pm_age_lock);
    int status = mark_and_count(leaks, in_use, err);
    pm_unlock(&pm_age_lock);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    return status;
}

static int find_among_others(struct pm_leaks *leaks, struct pm_live_sum *in_use,
                             struct pm_error *err) {
    if (!pm_hold_all_and(PATIENCE_MS, note))
        return pm_fail(err, PM_OPERATIONAL, "a thread does not stop");
    pm_tasks_each_other(find_sleeper, NULL);
    int status = mark_and_count(leaks, in_use, err);
    pm_release_all();
    return status;
}

static int find_from(uintptr_t stack, struct pm_leaks *leaks, struct pm_live_sum *in_use,
                     struct pm_error *err) {
    *leaks = (struct pm_leaks){0};
    known = pm_os_reserve(sizeof *known);
    if (!known)
        return pm_fail(err, PM_OPERATIONAL, "no memory: %s", pm_strerror(errno));
    know((pid_t)syscall(SYS_gettid), stack, NULL);
    int status = (pm_threads_none() ? find_alone : find_among_others)(leaks, in_use, err);
    munmap(known, sizeof *known);
    return status;
}

// Has a small frame: what old frames have left below it is not looked at. It saves the registers
// that callers may still use.
__attribute__((noinline)) int pm_leaks_find(struct pm_leaks *leaks, struct pm_live_sum *in_use,
                                            struct pm_error *err) {
    uintptr_t preserved[6], stack;
    __asm__ volatile("movq %%rbx, 0(%1)\n\tmovq %%rbp, 8(%1)\n\tmovq %%r12, 16(%1)\n\t"
                     "movq %%r13, 24(%1)\n\tmovq %%r14, 32(%1)\n\tmovq %%r15, 40(%1)\n\t"
                     "movq %%rsp, %0"
                     : "=&r"(stack)
                     : "r"(preserved)
                     : "memory");
    int status = find_from(stack, leaks, in_use, err);
    __asm__ volatile("" : : "r"(preserved) : "memory"); // not a tail call: the frame stays
    return status;
}

// ---- the report ---------------------------------------------------------------------------------

int pm_leaks_begin(struct pm_error *err) {
    if (pm_options.leaks.number == PM_LEAKS_OFF)
        return PM_OK;
    pm_own_note_library();
    if (pm_hold_prepare())
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL, "PMALLOC_LEAKS: no memory to hold threads with");
}

static void say_line(const char *line) { pm_say("leaks: %s", line); }

static uint32_t most(void) {
    uint32_t found = 0;
    for (uint32_t i = 1; i < PM_STACKS; i++)
        if (site[i].bytes > site[found].bytes)
            found = i;
    return found;
}

// The sites with the most bytes first.
static void say_sites(void) {
    for (unsigned n = 0; n < SITES_SAID; n++) {
        uint32_t i = most();
        if (!site[i].blocks)
            return;
        pm_say("leaks: %lu bytes in %lu blocks, one at %p, allocated by%s",
               (unsigned long)site[i].bytes, (unsigned long)site[i].blocks, site[i].example,
               i ? ":" : " what is not on record");
        pm_stacks_say(i);
        site[i] = (struct pm_leak_row){0};
    }
    uint64_t rest = 0;
    for (uint32_t i = 0; i < PM_STACKS; i++)
        rest += site[i].bytes;
    if (rest)
        pm_say("leaks: %lu bytes more, allocated in other places", (unsigned long)rest);
}

static void report(void) {
    static struct pm_leaks leaks;
    struct pm_live_sum in_use;
    struct pm_error err;
    if (pm_leaks_find(&leaks, &in_use, &err) != PM_OK) {
        pm_say("leaks: no report: %s", err.text);
        return;
    }
    pm_say("leaks: nothing reaches %lu of %lu blocks, %lu of %lu bytes%s",
           (unsigned long)leaks.sum.blocks, (unsigned long)in_use.blocks,
           (unsigned long)leaks.sum.bytes, (unsigned long)in_use.bytes,
           leaks.sum.blocks ? ":" : "");
    if (leaks.sum.blocks)
        pm_leaks_lines(&leaks, say_line);
    if (site)
        say_sites();
}

void pm_leaks_report(void) {
    static _Atomic bool said;
    if (pm_options.leaks.number == PM_LEAKS_OFF || pm_nested() || atomic_exchange(&said, true))
        return;
    struct pm_cancel held = pm_cancel_hold();
    site = pm_stacks_on ? pm_os_reserve(PM_STACKS * sizeof *site) : NULL;
    report();
    pm_cancel_release(held);
}
