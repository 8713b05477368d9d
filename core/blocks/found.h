// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What is at an address. Everybody who asks, asks here.
//
// All of it may be called in any signal handler, also in one that has interrupted the holder of a
// lock (pm_nested). There it takes no lock, and reads the tables as they are. That is safe for a
// block of the caller's: only its owner frees or resizes it. In such a handler a block of a slab
// that recovery has left untagged is not found.
#ifndef PM_FOUND_H
#define PM_FOUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "media/kind_format.h"
#include "pages/pagemap.h"

// Of a small block of malloc's.
static inline bool pm_tag_is_class(unsigned tag) { return tag >= 1 && tag <= PM_CLASSES; }
// Of a small block that thread caches have: malloc's or a pointer-free one.
static inline bool pm_tag_is_cached(unsigned tag) { return pm_tag_class(tag) != 0; }

enum pm_what {
    PM_NOTHING,  // no allocated block starts there; pm_misuse() knows more
    PM_FALLBACK, // a block of the fallback arena (base/fallback.h)
    PM_SMALL,    // a block of a slab
    PM_LARGE,    // an extent of its own
};

struct pm_found {
    enum pm_what what;
    enum pm_kind kind;
    uint16_t type;   // 0: none
    uint32_t extent; // of a large block
    size_t size;     // bytes that the program may use
};

struct pm_found pm_find(void *p);

// The most common case of it, inline: the size of a small block of malloc's. 0: something else.
static inline size_t pm_find_small(const void *p) {
    uint64_t granule = pm_granule(p);
    if (granule >= PM_GRANULES || !pm_tag)
        return 0;
    unsigned tag = __atomic_load_n(&pm_tag[pm_tag_index(granule)], __ATOMIC_RELAXED);
    return pm_tag_is_class(tag) ? pm_classes[tag].size : 0;
}

// The tag alone, which is enough for free(). PM_TAG_NONE: no allocated block of the heap starts
// there. First it writes the tags of the slab around `p` if recovery has left them unwritten.
unsigned pm_find_tag(const void *p);

// Reports what is wrong with `p`. Ends the process if PMALLOC_CHECK asks for that. Not in a handler
// that has interrupted the holder of a lock, unless `p` is outside the heap.
void pm_misuse(const char *call, const void *p);

#endif
