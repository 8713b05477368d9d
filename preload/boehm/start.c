// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The collector's start, at the first call of any function of gc.h.
#include <pthread.h>

#include "base/message.h"
#include "base/own_memory.h"
#include "boehm.h"
#include "live/sweep.h"
#include "live/trace.h"
#include "process/start.h"
#include "settings.h"
#include "threads/hold.h"

static void forked(void) { pm_gc_unlock(); }

static void define_kinds(void) {
    pm_col_kinds[KIND_ATOMIC] = (struct pm_col_kind){.mortal = true};
    pm_col_kinds[KIND_NORMAL] =
        (struct pm_col_kind){.add_size = true, .clear = true, .mortal = true};
    pm_col_kinds[KIND_UNCOLLECTABLE] = (struct pm_col_kind){.add_size = true, .clear = true};
    pm_col_kinds[KIND_ATOMIC_UNCOLLECTABLE] = (struct pm_col_kind){0};
    pm_col_kinds[KIND_TYPED] = (struct pm_col_kind){
        .descriptor = PM_TRACE_LAST_WORD, .add_size = true, .clear = true, .mortal = true};
    pm_col_kinds[KIND_GCJ] = (struct pm_col_kind){
        .descriptor =
            (uint64_t)(-(int64_t)sizeof(gc_word) - PM_TRACE_INDIRECT_BIAS) | PM_TRACE_PER_OBJECT,
        .clear = true,
        .mortal = true};
}

void pm_gc_start(void) {
    pm_process_start();
    pm_gc_lock();
    if (!pm_gc_ready) {
        pm_own_note_library();
        if (!pm_col_init() || !pm_sweep_begin())
            pm_refuse(PM_EV_START_REFUSED,
                      "no address space for the collector's tables; is `ulimit -v` or "
                      "vm.overcommit_memory=2 set?");
        define_kinds();
        GC_least_plausible_heap_addr = (void *)pm_base;
        GC_greatest_plausible_heap_addr = (void *)(pm_base + pm_range - 1);
        pm_gc_settings_read();
        pthread_atfork(pm_gc_lock, forked, forked);
        pm_gc_ready = true;
    }
    pm_gc_unlock();
}

// Threads can be held without a trace only if their calls are on record before they sleep.
__attribute__((constructor)) static void prepare(void) { pm_hold_prepare(); }

EXPORT void GC_init(void) { pm_gc_init(); }
EXPORT int GC_is_init_called(void) { return pm_gc_ready; }
EXPORT void GC_deinit(void) {}
