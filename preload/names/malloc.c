// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// libc's malloc family by its names (glibc manual, "Replacing malloc"). These functions check their
// arguments as libc does. preload/process/entry.c and core/ do the rest.
#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks/stats.h"
#include "commit/commit_cost.h"
#include "export.h"
#include "marker.h"
#include "process/entry.h"
#include "process/start.h"

#define PAGE PM_PAGE_SIZE

// When both libpmalloc_preload.so and libpmalloc.so are loaded, malloc is the one of the first in
// search order. The other library does nothing.
char pm_marker[1];

static bool is_power_of_two(size_t x) { return x && (x & (x - 1)) == 0; }

EXPORT void *malloc(size_t size) { return pm_malloc(size); }
EXPORT void free(void *p) { pm_free(p); }
EXPORT void *calloc(size_t count, size_t size) { return pm_calloc(count, size); }
EXPORT void *realloc(void *p, size_t size) { return pm_realloc(p, size); }

// C23's names, in glibc from 2.43 on. The sizes only say what a caller must know anyhow.
EXPORT void free_sized(void *p, size_t size);
EXPORT void free_sized(void *p, size_t size) {
    (void)size;
    pm_free(p);
}

EXPORT void free_aligned_sized(void *p, size_t align, size_t size);
EXPORT void free_aligned_sized(void *p, size_t align, size_t size) {
    (void)align;
    (void)size;
    pm_free(p);
}

EXPORT size_t malloc_usable_size(void *p) { return p == pm_marker ? PM_MARK : pm_usable_size(p); }

EXPORT void *reallocarray(void *p, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return pm_realloc(p, bytes);
}

// glibc rounds memalign's alignment up to a power of two. Up to version 2.37 its aligned_alloc did
// the same.
EXPORT void *memalign(size_t align, size_t size) {
    if (align > SIZE_MAX / 2 + 1) {
        errno = EINVAL;
        return NULL;
    }
    while (!is_power_of_two(align))
        align = align ? (align | (align - 1)) + 1 : 16;
    return pm_memalign(align, size);
}

EXPORT void *aligned_alloc(size_t align, size_t size) {
    if (!is_power_of_two(align)) {
        errno = EINVAL;
        return NULL;
    }
    return pm_memalign(align, size);
}

// Returns the error and leaves errno alone. On failure *out stays as it was.
EXPORT int posix_memalign(void **out, size_t align, size_t size) {
    if (!is_power_of_two(align) || align % sizeof(void *))
        return EINVAL;
    int saved = errno;
    void *p = pm_memalign(align, size);
    if (!p)
        return ENOMEM; // errno says so, too, as with glibc
    errno = saved;
    *out = p;
    return 0;
}

EXPORT void *valloc(size_t size) { return pm_memalign(PAGE, size); }

EXPORT void *pvalloc(size_t size);
EXPORT void *pvalloc(size_t size) {
    if (size > SIZE_MAX - PAGE) {
        errno = ENOMEM;
        return NULL;
    }
    return pm_memalign(PAGE, size ? (size + PAGE - 1) & ~(PAGE - 1) : PAGE);
}

// ---- introspection ------------------------------------------------------------------------------

// None of glibc's parameters has a counterpart here. The answer 1 says "accepted", as programs
// expect when they set M_TRIM_THRESHOLD.
EXPORT int mallopt(int parameter, int value);
EXPORT int mallopt(int parameter, int value) {
    (void)parameter;
    (void)value;
    return 1;
}

EXPORT int malloc_trim(size_t pad);
EXPORT int malloc_trim(size_t pad) {
    (void)pad;
    return pm_trim();
}

#ifdef __GLIBC__

EXPORT struct mallinfo2 mallinfo2(void) {
    struct mallinfo2 info;
    memset(&info, 0, sizeof info);
    pm_process_start();
    if (!pm_phase_serves())
        return info;
    struct pm_stats s;
    pm_stats_get(&s);
    // arena = uordblks + fordblks, as in glibc. Large blocks are counted apart, in hblks.
    info.arena = s.slab_bytes + s.large_cached_bytes + s.reclaimed_bytes;
    info.uordblks = s.small_used_bytes;
    info.fordblks = info.arena - info.uordblks;
    info.hblks = s.large_blocks;
    info.hblkhd = s.large_bytes;
    info.fsmblks = s.cached_bytes;
    info.keepcost = s.large_cached_bytes + s.reclaimed_bytes;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++)
        info.ordblks += s.cls[cls].blocks - s.cls[cls].used;
    return info;
}

// The fields of the old interface are int and wrap around, as glibc documents.
EXPORT struct mallinfo mallinfo(void) {
    struct mallinfo2 big = mallinfo2();
    return (struct mallinfo){.arena = (int)big.arena,
                             .ordblks = (int)big.ordblks,
                             .hblks = (int)big.hblks,
                             .hblkhd = (int)big.hblkhd,
                             .fsmblks = (int)big.fsmblks,
                             .uordblks = (int)big.uordblks,
                             .fordblks = (int)big.fordblks,
                             .keepcost = (int)big.keepcost};
}

#endif

EXPORT void malloc_stats(void);
EXPORT void malloc_stats(void) {
    pm_process_start();
    if (pm_phase_serves()) {
        pm_stats_say();
        pm_commit_cost_say();
    }
}

static void info_of_reach(FILE *out, const struct pm_stats *s) {
    static const char *const name[PM_STEPS] = {
        [PM_STEP_OWN] = "own",     [PM_STEP_NODE] = "node",         [PM_STEP_FAR] = "far",
        [PM_STEP_MORPH] = "morph", [PM_STEP_MORPH_OTHER] = "other", [PM_STEP_GROW] = "grow",
        [PM_STEP_LEND] = "lent",   [PM_STEP_NONE] = "none"};
    fprintf(out, "<reach");
    for (unsigned step = 0; step < PM_STEPS; step++)
        fprintf(out, " %s=\"%lu\"", name[step], (unsigned long)s->steps[step]);
    fprintf(out, " failed=\"%lu\"/>\n", (unsigned long)s->failed);
}

EXPORT int malloc_info(int options, FILE *out);
EXPORT int malloc_info(int options, FILE *out) {
    if (options != 0) {
        errno = EINVAL;
        return -1;
    }
    struct pm_stats s;
    memset(&s, 0, sizeof s);
    pm_process_start();
    if (pm_phase_serves())
        pm_stats_get(&s);
    fprintf(out, "<malloc version=\"pmalloc-1\">\n<sizes>\n");
    PM_EACH_CLASS(cls)
        if (s.cls[cls].slabs)
            fprintf(out, "  <size bytes=\"%u\" used=\"%lu\" total=\"%lu\" slabs=\"%lu\"/>\n",
                    pm_classes[cls].size, (unsigned long)s.cls[cls].used,
                    (unsigned long)s.cls[cls].blocks, (unsigned long)s.cls[cls].slabs);
    fprintf(out, "</sizes>\n");
    info_of_reach(out, &s);
    fprintf(out,
            "<total type=\"large\" count=\"%lu\" size=\"%lu\"/>\n"
            "<total type=\"free\" size=\"%lu\"/>\n<caches count=\"%lu\" size=\"%lu\"/>\n<system "
            "type=\"current\" size=\"%lu\"/>\n</malloc>\n",
            (unsigned long)s.large_blocks, (unsigned long)s.large_bytes,
            (unsigned long)s.reclaimed_bytes, (unsigned long)s.threads,
            (unsigned long)(s.cached_bytes + s.large_cached_bytes), (unsigned long)s.heap_bytes);
    return ferror(out) ? -1 : 0;
}
