// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "settings.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/message.h"
#include "live/helpers.h"
#include "live/trace.h"
#include "marking/forms.h"

#define DIVISOR 3
#define MARKERS_MAX (PM_HELPERS + 1)
#define UNLIMITED 999999ul // GC_TIME_UNLIMITED

EXPORT gc_word GC_gc_no, GC_non_gc_bytes, GC_free_space_divisor = DIVISOR, GC_max_retries;
EXPORT unsigned long GC_time_limit = UNLIMITED;
EXPORT int GC_parallel, GC_find_leak, GC_all_interior_pointers = 1, GC_finalize_on_demand;
EXPORT int GC_java_finalization = 1, GC_dont_expand, GC_dont_gc, GC_dont_precollect;
EXPORT int GC_full_freq = 19, GC_no_dls, GC_use_entire_heap;
EXPORT void (*GC_on_heap_resize)(gc_word);
EXPORT void (*GC_finalizer_notifier)(void);
EXPORT void (*GC_push_other_roots)(void);
EXPORT void *GC_least_plausible_heap_addr = (void *)UINTPTR_MAX;
EXPORT void *GC_greatest_plausible_heap_addr;

static void *no_memory(size_t bytes) {
    (void)bytes;
    errno = ENOMEM;
    return NULL;
}
EXPORT void *(*GC_oom_fn)(size_t) = no_memory;

static void say(char *format, gc_word arg) {
    char text[400];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, format, arg);
#pragma GCC diagnostic pop
    text[strcspn(text, "\n")] = '\0';
    pm_event(PM_EV_GC_WARNING, "GC warning: %s", text);
}

static int never(void) { return 0; }
static void say_what(const char *what) { pm_event(PM_EV_GC_ABORT, "%s", what); }
EXPORT void (*GC_on_abort)(const char *what) = say_what;

struct pm_gc_settings pm_gc_settings = {.stop = never, .warn = say, .min_allocated = 1};

void pm_gc_warn(const char *format, gc_word arg) {
    pm_gc_settings.warn((char *)(uintptr_t)format, arg);
}

void pm_gc_abort(const char *what) {
    if (GC_on_abort != say_what)
        GC_on_abort(what);
    pm_abort(PM_EV_GC_ABORT, "%s", what);
}

// "12", "12k", "12M", "12G"; 0: the text is no such number.
static uint64_t size_of(const char *text) {
    char *end;
    uint64_t size = text ? strtoull(text, &end, 10) : 0;
    if (!size)
        return 0;
    const char *units = "kmg", *unit = *end ? strchr(units, *end | 32) : NULL;
    return unit ? size << (10 * (unit - units + 1)) : size;
}

static unsigned asked_markers; // by GC_set_markers_count(); 0: it was not called

EXPORT void GC_set_markers_count(unsigned count) {
    if (!pm_gc_ready)
        asked_markers = count < MARKERS_MAX ? count : MARKERS_MAX;
}

// As bdwgc: GC_MARKERS counts before the call, and that before GC_NPROCS.
static void read_markers(void) {
    const char *text = secure_getenv("GC_MARKERS"), *cores = secure_getenv("GC_NPROCS");
    long wanted = text ? atol(text) : 0;
    if (text && (wanted <= 0 || wanted > (long)MARKERS_MAX)) {
        pm_gc_warn("Too big or invalid number of mark threads: %ld; using maximum threads\n",
                   (gc_word)wanted);
        wanted = MARKERS_MAX;
    }
    if (!text)
        wanted = asked_markers;
    if (!wanted && cores && atol(cores) > 0)
        wanted = atol(cores);
    pm_trace_wanted = wanted < (long)MARKERS_MAX ? (unsigned)wanted : MARKERS_MAX;
    GC_parallel = (int)pm_helpers_markers(pm_trace_wanted) - 1;
}

void pm_gc_settings_read(void) {
    const char *divisor = secure_getenv("GC_FREE_SPACE_DIVISOR");
    if (secure_getenv("GC_DONT_GC"))
        GC_dont_gc = 1;
    read_markers();
    if (divisor && atoi(divisor) > 0)
        GC_free_space_divisor = (gc_word)atoi(divisor);
    uint64_t max = size_of(secure_getenv("GC_MAXIMUM_HEAP_SIZE"));
    if (max)
        pm_gc_settings.max_heap = max;
}

// ---- variables with two functions each ----------------------------------------------------------

#define VARIABLE(type, name)                                                                       \
    EXPORT void GC_set_##name(type value) { GC_##name = value; }                                   \
    EXPORT type GC_get_##name(void) { return GC_##name; }
VARIABLE(int, find_leak)
VARIABLE(int, all_interior_pointers)
VARIABLE(int, finalize_on_demand)
VARIABLE(int, java_finalization)
VARIABLE(int, dont_expand)
VARIABLE(int, dont_precollect)
VARIABLE(int, full_freq)
VARIABLE(int, no_dls)
VARIABLE(gc_word, non_gc_bytes)
VARIABLE(gc_word, free_space_divisor)
VARIABLE(gc_word, max_retries)
VARIABLE(unsigned long, time_limit)

// Callbacks by typedef: a macro cannot name a function type in the middle.
typedef void *oom_fn(size_t);
typedef void resize_fn(gc_word);
typedef void plain_fn(void);
typedef void event_fn(int);
typedef void thread_event_fn(int, void *);
typedef int stop_fn(void);
typedef void warn_fn(char *, gc_word);
typedef void block_fn(void *);
typedef int toggle_fn(void *);
VARIABLE(oom_fn *, oom_fn)
VARIABLE(resize_fn *, on_heap_resize)
VARIABLE(plain_fn *, finalizer_notifier)
VARIABLE(plain_fn *, push_other_roots)

#define FIELD(type, name, field)                                                                   \
    EXPORT void GC_set_##name(type value) {                                                        \
        pm_gc_lock();                                                                              \
        pm_gc_settings.field = value;                                                              \
        pm_gc_unlock();                                                                            \
    }                                                                                              \
    EXPORT type GC_get_##name(void) { return pm_gc_settings.field; }
FIELD(event_fn *, on_collection_event, on_event)
FIELD(thread_event_fn *, on_thread_event, on_thread)
FIELD(stop_fn *, stop_func, stop)
FIELD(plain_fn *, start_callback, start)
FIELD(warn_fn *, warn_proc, warn)
FIELD(block_fn *, await_finalize_proc, await_finalize)
FIELD(toggle_fn *, toggleref_func, toggle)
FIELD(int, disable_automatic_collection, manual)
FIELD(size_t, min_bytes_allocd, min_allocated)

// The variable is one that gc.h does not declare, and bdwgc's tests call.
EXPORT void GC_set_abort_func(void (*fn)(const char *)) {
    pm_gc_lock();
    GC_on_abort = fn;
    pm_gc_unlock();
}
EXPORT void (*GC_get_abort_func(void))(const char *) { return GC_on_abort; }

EXPORT void GC_ignore_warn_proc(char *format, gc_word arg) {
    (void)format;
    (void)arg;
}
EXPORT void GC_set_max_heap_size(gc_word bytes) { pm_gc_settings.max_heap = bytes; }
EXPORT void GC_abort_on_oom(void) { pm_gc_abort("Insufficient memory for the allocation"); }

// ---- kept, but without a meaning here -----------------------------------------------------------
// They tune what this collector does otherwise: incremental marking in steps, several attempts. A
// corrector of stack pointers, which came after 8.2.2, names a stack beside the one that a thread
// is on; this collector looks at both.

#define KEPT(type, name, first)                                                                    \
    static type kept_##name = first;                                                               \
    EXPORT void GC_set_##name(type value) { kept_##name = value; }                                 \
    EXPORT type GC_get_##name(void) { return kept_##name; }
KEPT(gc_word, allocd_bytes_per_finalizer, 10000)
KEPT(int, pages_executable, 0)
KEPT(int, rate, 10)
KEPT(int, max_prior_attempts, 1)
KEPT(int, manual_vdb_allowed, 0)
KEPT(int, force_unmap_on_gcollect, 0)
typedef void stack_fn(void **stack, void *thread);
KEPT(stack_fn *, sp_corrector, NULL)

struct time_limit {
    unsigned long milliseconds, nanoseconds;
};
static struct time_limit limit = {UNLIMITED, 0};
EXPORT void GC_set_time_limit_tv(struct time_limit value) { limit = value; }
EXPORT struct time_limit GC_get_time_limit_tv(void) { return limit; }
// From bdwgc 8.3 on. A program sets both before GC_INIT(), and its next start has them on record.
static gc_word pointer_mask = UINT64_MAX, pointer_shift;

static void take_pointers(void) {
    if (!pm_forms_set_mask(pointer_mask, (unsigned)pointer_shift))
        pm_gc_warn("the pointer mask %lx is not one row of bits; it is not used", pointer_mask);
}

EXPORT void GC_set_pointer_mask(gc_word mask) {
    pointer_mask = mask;
    take_pointers();
}
EXPORT gc_word GC_get_pointer_mask(void) { return pointer_mask; }
EXPORT void GC_set_pointer_shift(unsigned shift) {
    pointer_shift = shift;
    take_pointers();
}
EXPORT unsigned GC_get_pointer_shift(void) { return (unsigned)pointer_shift; }

EXPORT void GC_set_handle_fork(int value) { (void)value; }
EXPORT void GC_set_log_fd(int fd) { (void)fd; }
EXPORT void GC_start_mark_threads(void) {}
EXPORT int GC_get_parallel(void) { return GC_parallel; }
EXPORT unsigned GC_get_version(void) { return 8u << 16 | 2u << 8 | 2u; }
EXPORT gc_word GC_get_gc_no(void) { return GC_gc_no; }
