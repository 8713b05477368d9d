// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Figures of gc.h. The heap also holds what the program has from malloc().
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/message.h"
#include "boehm.h"
#include "media/heap.h"
#include "process/start.h"
#include "settings.h"

uint64_t pm_gc_heap_size(void) {
    uint64_t bytes = 0;
    for (unsigned i = 0; pm_phase_serves() && i < pm_heap.shards; i++)
        bytes += pm_heap.shard[i].frontier;
    return bytes;
}

static uint64_t in_use(void) { return pm_gc_figures.live + pm_gc_bytes_since(); }

EXPORT size_t GC_get_heap_size(void) { return pm_gc_heap_size(); }
EXPORT size_t GC_get_free_bytes(void) {
    uint64_t heap = pm_gc_heap_size(), used = in_use();
    return heap > used ? heap - used : 0;
}
EXPORT size_t GC_get_unmapped_bytes(void) { return 0; }
EXPORT size_t GC_get_bytes_since_gc(void) { return pm_gc_bytes_since(); }
EXPORT size_t GC_get_expl_freed_bytes_since_gc(void) { return pm_gc_figures.freed_since; }
EXPORT size_t GC_get_total_bytes(void) { return pm_gc_figures.before + pm_gc_bytes_since(); }
EXPORT size_t GC_get_obtained_from_os_bytes(void) { return pm_gc_heap_size(); }
EXPORT size_t GC_get_memory_use(void) { return in_use(); }
EXPORT unsigned long GC_get_full_gc_total_time(void) { return pm_gc_figures.milliseconds; }
EXPORT void GC_start_performance_measurement(void) {}
EXPORT void GC_incr_bytes_allocd(size_t bytes) { pm_gc_figures.since += bytes; }
EXPORT void GC_incr_bytes_freed(size_t bytes) { pm_gc_figures.freed_since += bytes; }
EXPORT size_t GC_get_size_map_at(int i) {
    return i >= 0 && (size_t)i <= PM_SMALL_MAX ? pm_classes[pm_size_to_class((size_t)i)].size / 16
                                               : SIZE_MAX;
}

EXPORT void GC_get_heap_usage_safe(gc_word *heap, gc_word *free_bytes, gc_word *unmapped,
                                   gc_word *since, gc_word *total) {
    gc_word ignored;
    *(heap ? heap : &ignored) = GC_get_heap_size();
    *(free_bytes ? free_bytes : &ignored) = GC_get_free_bytes();
    *(unmapped ? unmapped : &ignored) = 0;
    *(since ? since : &ignored) = GC_get_bytes_since_gc();
    *(total ? total : &ignored) = GC_get_total_bytes();
}

// struct GC_prof_stats_s: words, of which later versions may know more.
EXPORT size_t GC_get_prof_stats(void *out, size_t size) {
    gc_word stats[] = {GC_get_heap_size(),
                       GC_get_free_bytes(),
                       0,
                       GC_get_bytes_since_gc(),
                       pm_gc_figures.before,
                       GC_non_gc_bytes,
                       GC_gc_no,
                       (gc_word)GC_parallel,
                       pm_gc_figures.dead,
                       0,
                       pm_gc_figures.freed_since,
                       GC_get_heap_size()};
    size_t known = size < sizeof stats ? size : sizeof stats;
    memcpy(out, stats, known);
    memset((char *)out + known, 0xff, size - known);
    return known;
}
EXPORT size_t GC_get_prof_stats_unsafe(void *out, size_t size) {
    return GC_get_prof_stats(out, size);
}

EXPORT void GC_dump_named(const char *name) {
    pm_event(PM_EV_GC_REPORT,
             "GC: %s%scollections %lu, %lu ms; the last by %u of %d markers; alive %lu bytes, "
             "dead %lu; roots %lu; since %lu",
             name ? name : "", name ? ": " : "", GC_gc_no, (gc_word)pm_gc_figures.milliseconds,
             pm_gc_figures.markers, GC_parallel + 1, (gc_word)pm_gc_figures.live,
             (gc_word)pm_gc_figures.dead, (gc_word)pm_gc_figures.roots,
             (gc_word)pm_gc_bytes_since());
}
EXPORT void GC_dump(void) { GC_dump_named(NULL); }
EXPORT void GC_dump_regions(void) { GC_dump(); }
EXPORT void GC_dump_finalization(void) { GC_dump(); }

#define PRINT(name)                                                                                \
    EXPORT __attribute__((format(printf, 1, 2))) void name(const char *format, ...) {              \
        char text[600];                                                                            \
        va_list args;                                                                              \
        va_start(args, format);                                                                    \
        vsnprintf(text, sizeof text, format, args);                                                \
        va_end(args);                                                                              \
        text[strcspn(text, "\n")] = '\0';                                                          \
        pm_event(PM_EV_GC_REPORT, "GC: %s", text);                                                 \
    }
PRINT(GC_printf)
PRINT(GC_err_printf)
PRINT(GC_log_printf)
