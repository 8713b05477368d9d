// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "sizeclass.h"

#define GRANULES(cls, size, below) [(below) / 16 + 1 ...(size) / 16] = (cls),
const uint8_t pm_class_of_granules[PM_SMALL_MAX / 16 + 1] = {[0] = 1, PM_CLASS_TABLE(GRANULES)};

// A thread cache holds at most 64 KiB of a class, in 4 to 200 blocks.
#define CAP_BYTES 65536
#define CAP(size) (CAP_BYTES / (size) > 200 ? 200 : CAP_BYTES / (size) < 4 ? 4 : CAP_BYTES / (size))
#define CLASS(cls, bytes, below)                                                                   \
    [cls] = {.size = (bytes),                                                                      \
             .blocks = PM_SLAB_SIZE / (bytes),                                                     \
             .reciprocal = (uint32_t)(((1ull << 32) + (bytes)-1) / (bytes)),                       \
             .tcache_cap = CAP(bytes)},
const struct pm_class pm_classes[PM_CLASSES + 1] = {PM_CLASS_TABLE(CLASS)};

unsigned pm_aligned_class(size_t size, size_t align) {
    if (size > PM_SMALL_MAX || align > PM_SMALL_MAX)
        return 0;
    for (unsigned cls = pm_size_to_class(size); cls <= PM_CLASSES; cls++)
        if ((pm_classes[cls].size & (align - 1)) == 0)
            return cls;
    return 0;
}

uint64_t pm_large_pages(size_t size) {
    if (size > PM_ENTRY_PAGES_MAX << PM_PAGE_SHIFT)
        return 0;
    if (size == 0)
        size = 1;
    unsigned top = 63u - (unsigned)__builtin_clzll(size);
    size_t step = (size_t)1 << (top > PM_PAGE_SHIFT + 3 ? top - 3 : PM_PAGE_SHIFT);
    uint64_t pages = (uint64_t)((size + step - 1) & ~(step - 1)) >> PM_PAGE_SHIFT;
    return pages > PM_ENTRY_PAGES_MAX ? PM_ENTRY_PAGES_MAX : pages;
}
