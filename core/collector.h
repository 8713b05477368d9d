// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The one hook through which core reaches the collector: gc defines pm_collector, core calls it. The calls come
// in this order, from one thread.
#ifndef PM_COLLECTOR_H
#define PM_COLLECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "message.h"

// What an opening found and did. "Leaked" is provably allocated and unreachable: extents always, small
// blocks only where a clean close left bitmaps.
struct pm_recovery {
    bool was_clean;
    bool marked; // false: PMALLOC_COLLECT=crash trusted the bitmaps
    bool leaks_exact;
    unsigned roots, markers;
    uint64_t live_objects, live_bytes;
    uint64_t leaked_objects, leaked_bytes;
    uint64_t reclaimed_bytes; // extents and whole slabs given back
    uint64_t slabs, extents;  // that stay
    uint64_t morphing;        // slabs that hold blocks of two classes, and stay
    uint64_t overflows;       // mark stack rescans
    double seconds, mark_seconds;
};

struct pm_collector {
    // Resolves PMALLOC_ROOTS and the heap's own roots in this process. Changes nothing.
    int (*prepare)(struct pm_error *err);
    // Rebuilds the volatile side from the mapped heap, marks and sweeps; `write` false leaves the media as it
    // is. Everything is validated before the first write.
    int (*recover)(bool write, struct pm_recovery *result, struct pm_error *err);
    // Captures the resolved roots in the heap and restores their bytes: just before main.
    int (*capture)(struct pm_error *err);
    // Whether the byte at `p` belongs to a captured root.
    bool (*captured)(const void *p);
    // In a forked child, and at the end of the program: captured pages become private memory. False without memory
    // for it; some may be private then.
    bool (*privatise)(void);
    // Makes them shared again, where nobody has stored anything meanwhile. False without memory.
    bool (*rejoin)(void);
    // The checksum of what they have left in the heap, for the clean close.
    bool (*images_crc)(uint32_t *crc, struct pm_error *err);
    // The same pages become those of the heap that pm_heap is now, which has the same images.
    int (*remap)(struct pm_error *err);
    // Whether children get the captured pages by a clone() without handlers (fork.h).
    bool (*guard)(bool on);
};
extern const struct pm_collector pm_collector;

#endif
