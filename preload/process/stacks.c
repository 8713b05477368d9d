// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "stacks.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif

#include "base/cancel.h"
#include "base/lazy_table.h"
#include "base/library.h"
#include "base/options.h"
#include "base/own_memory.h"
#include "pages/pagemap.h"

#define FRAMES PM_STACK_FRAMES
#define OURS 8u // frames of PMAlloc's own that may lie below the program's
#define TRIES 16u

struct stack {
    _Atomic uint64_t hash; // 0: nobody's
    void *frame[FRAMES];   // up to the first that is NULL
};

bool pm_stacks_on;
static bool recording;
static struct stack *stacks;
static struct pm_range_table sites = {.element = sizeof(uint32_t), .shift = PM_GRANULE_SHIFT};
static __thread bool inside __attribute__((tls_model("initial-exec")));

int pm_stacks_begin(struct pm_error *err) {
    if (pm_options.leaks.number != PM_LEAKS_STACKS)
        return PM_OK;
#ifndef __GLIBC__
    return pm_fail(err, PM_USAGE, "PMALLOC_LEAKS=stack: this libc has no backtrace(); use 1");
#endif
    stacks = pm_own_reserve(PM_STACKS * sizeof *stacks);
    if (!stacks || !pm_range_table_reserve(&sites, pm_range))
        return pm_fail(err, PM_OPERATIONAL, "PMALLOC_LEAKS=stack: no memory for its tables");
    pm_stacks_on = true;
    return PM_OK;
}

// ---- recording ----------------------------------------------------------------------------------

static unsigned find_frames(void *frame[FRAMES]) {
    unsigned count = 0;
#ifdef __GLIBC__
    void *all[FRAMES + OURS];
    int found = backtrace(all, (int)(FRAMES + OURS));
    for (int i = 0; i < found && count < FRAMES; i++)
        if (count || !pm_library_has((uintptr_t)all[i]))
            frame[count++] = all[i];
#else
    (void)frame;
#endif
    return count;
}

void pm_stacks_record(void) {
    void *frame[FRAMES];
    if (!pm_stacks_on)
        return;
    inside = true;
    find_frames(frame);
    inside = false;
    recording = true;
}

// Two stacks with one hash are taken for one.
static uint32_t find_stack(void *const *frame, unsigned count) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (unsigned i = 0; i < count; i++)
        hash = (hash ^ (uintptr_t)frame[i]) * 0x9e3779b97f4a7c15u;
    hash |= 1;
    for (unsigned i = 0; i < TRIES; i++) {
        uint32_t site = (uint32_t)((hash >> 40) + i) % PM_STACKS;
        uint64_t seen = 0;
        if (!site)
            continue;
        if (atomic_compare_exchange_strong_explicit(&stacks[site].hash, &seen, hash,
                                                    memory_order_relaxed, memory_order_relaxed)) {
            for (unsigned f = 0; f < count; f++)
                stacks[site].frame[f] = frame[f];
            return site;
        }
        if (seen == hash)
            return site;
    }
    return 0;
}

static uint32_t *site_of(const void *block) {
    return (uint32_t *)(void *)sites.table[0].map + pm_granule(block);
}

// The unwinder may ask for memory itself, and so may a signal handler that interrupts it.
void pm_stacks_store(void *block) {
    void *frame[FRAMES];
    if (!pm_in_range(block))
        return;
    *site_of(block) = 0;
    if (!recording || inside || pm_nested())
        return;
    int saved = errno;
    inside = true;
    unsigned count = find_frames(frame);
    inside = false;
    *site_of(block) = find_stack(frame, count);
    errno = saved;
}

// ---- the report ---------------------------------------------------------------------------------

uint32_t pm_stacks_site(const void *block) { return *site_of(block); }

void *const *pm_stacks_frames(uint32_t site) { return stacks[site].frame; }

static void say_frame(unsigned number, void *at) {
    Dl_info info;
    if (!dladdr(at, &info) || !info.dli_fname)
        pm_event(PM_EV_LEAKS, "leaks:     #%u %p", number, at);
    else
        pm_event(PM_EV_LEAKS, "leaks:     #%u %s+0x%lx%s%s", number, info.dli_fname,
                 (unsigned long)((char *)at - (char *)info.dli_fbase), info.dli_sname ? "  " : "",
                 info.dli_sname ? info.dli_sname : "");
}

void pm_stacks_say(uint32_t site) {
    for (unsigned i = 0; i < FRAMES && stacks[site].frame[i]; i++)
        say_frame(i, stacks[site].frame[i]);
}
