// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a program may set: variables that gc.h exports, and those behind GC_set_*.
#ifndef PM_BOEHM_SETTINGS_H
#define PM_BOEHM_SETTINGS_H

#include "boehm.h"

extern gc_word GC_gc_no, GC_non_gc_bytes, GC_free_space_divisor, GC_max_retries;
extern unsigned long GC_time_limit;
extern int GC_parallel, GC_find_leak, GC_all_interior_pointers, GC_finalize_on_demand;
extern int GC_java_finalization, GC_dont_expand, GC_dont_gc, GC_dont_precollect, GC_full_freq;
extern int GC_no_dls, GC_use_entire_heap;
extern void *(*GC_oom_fn)(size_t);
extern void (*GC_on_heap_resize)(gc_word);
extern void (*GC_finalizer_notifier)(void);
extern void (*GC_push_other_roots)(void);
extern void (*GC_on_abort)(const char *what);
extern char *GC_stackbottom;
extern void *GC_least_plausible_heap_addr, *GC_greatest_plausible_heap_addr;

struct pm_gc_settings {
    void (*on_event)(int event);
    void (*on_thread)(int event, void *thread);
    int (*stop)(void);
    void (*start)(void);
    void (*warn)(char *format, gc_word arg);
    void (*await_finalize)(void *block);
    int (*toggle)(void *block);
    int manual;        // collections are made only when asked for
    uint64_t max_heap; // 0: none
    uint64_t min_allocated;
};
extern struct pm_gc_settings pm_gc_settings;
// From the environment, by bdwgc's names.
void pm_gc_settings_read(void);

// Values of GC_EventType.
enum {
    EVENT_START,
    EVENT_MARK_START,
    EVENT_MARK_END,
    EVENT_RECLAIM_START,
    EVENT_RECLAIM_END,
    EVENT_END,
    EVENT_PRE_STOP_WORLD,
    EVENT_POST_STOP_WORLD,
    EVENT_PRE_START_WORLD,
    EVENT_POST_START_WORLD,
};
static inline void pm_gc_event(int event) {
    if (pm_gc_settings.on_event)
        pm_gc_settings.on_event(event);
}

#endif
