// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The size classes of small blocks: steps of 16 bytes up to 256, then four classes in each doubling
// up to 16 KiB. Class numbers start at 1, so that 0 can mean "no block" wherever a class is stored.
// Slab headers name classes by number. So a class that was added later has a number after those of
// the first 36, whatever its size.
#ifndef PM_SIZECLASS_H
#define PM_SIZECLASS_H

#include <stddef.h>
#include <stdint.h>

#include "geometry.h"

#define PM_CLASSES 40u
#define PM_CLASSES_FIRST 36u // those that every heap may have; the others need PM_INCOMPAT_CLASSES
#define PM_SMALL_MAX ((size_t)16384)

// X(class, block size, next smaller block size)
// clang-format off
#define PM_CLASS_TABLE(X)                                                                          \
    X(1, 16, 0) X(2, 32, 16) X(3, 48, 32) X(4, 64, 48)                                             \
    X(5, 80, 64) X(6, 96, 80) X(7, 112, 96) X(8, 128, 112)                                         \
    X(9, 160, 144) X(10, 192, 176) X(11, 224, 208) X(12, 256, 240)                                 \
    X(13, 320, 256) X(14, 384, 320) X(15, 448, 384) X(16, 512, 448)                                \
    X(17, 640, 512) X(18, 768, 640) X(19, 896, 768) X(20, 1024, 896)                               \
    X(21, 1280, 1024) X(22, 1536, 1280) X(23, 1792, 1536) X(24, 2048, 1792)                        \
    X(25, 2560, 2048) X(26, 3072, 2560) X(27, 3584, 3072) X(28, 4096, 3584)                        \
    X(29, 5120, 4096) X(30, 6144, 5120) X(31, 7168, 6144) X(32, 8192, 7168)                        \
    X(33, 10240, 8192) X(34, 12288, 10240) X(35, 14336, 12288) X(36, 16384, 14336)                 \
    X(37, 144, 128) X(38, 176, 160) X(39, 208, 192) X(40, 240, 224)
// clang-format on

// From a size in granules, rounded up, to its class. Entry 0 is for malloc(0).
extern const uint8_t pm_class_of_granules[PM_SMALL_MAX / 16 + 1];

struct pm_class {
    uint32_t size;       // bytes of a block
    uint32_t blocks;     // in a slab
    uint32_t reciprocal; // ceil(2^32 / size): x / size == (x * reciprocal) >> 32 for x < 64 KiB
    uint32_t tcache_cap; // blocks of the class that a thread cache may hold
};
extern const struct pm_class pm_classes[PM_CLASSES + 1];

// The class for a request of `size` bytes, at most PM_SMALL_MAX.
static inline unsigned pm_size_to_class(size_t size) {
    return pm_class_of_granules[(size + 15) >> PM_GRANULE_SHIFT];
}

// The class of the next larger blocks: of the smallest ones after 0, and 0 after the largest.
static inline unsigned pm_class_after(unsigned cls) {
    size_t size = pm_classes[cls].size;
    return size == PM_SMALL_MAX ? 0 : pm_size_to_class(size + 1);
}
// All classes, from the smallest blocks to the largest.
#define PM_EACH_CLASS(cls) for (unsigned cls = pm_class_after(0); cls; cls = pm_class_after(cls))

// The index of the block that contains byte `offset` of a slab. It is >= `blocks` if the byte lies
// after the last block.
static inline unsigned pm_block_index(unsigned cls, uint32_t offset) {
    return (unsigned)(((uint64_t)offset * pm_classes[cls].reciprocal) >> 32);
}

// The smallest class whose blocks hold `size` bytes and are all aligned to `align` (a power of
// two). 0: only an extent will do. Slabs are aligned to 64 KiB and start with block 0, so all
// blocks of a class are aligned exactly if their size is a multiple of the alignment.
unsigned pm_aligned_class(size_t size, size_t align);

// Returns how many pages a large block of `size` bytes gets; 0: an extent cannot be that long. The
// size is rounded up to whole pages and to an eighth of a power of two, so that a freed extent fits
// the next request of about the same size.
uint64_t pm_large_pages(size_t size);

// The same as a number: pm_size_list(pm_large_pages(size)) (pages/free_extents.h), for `size` above
// PM_SMALL_MAX.
static inline unsigned pm_large_list(size_t size) {
    size_t last = size - 1; // in bytes from the start
    unsigned top = 63u ^ (unsigned)__builtin_clzll(last);
    if (top <= PM_PAGE_SHIFT + 2)
        return (unsigned)(last >> PM_PAGE_SHIFT) + 1;
    return (top - PM_PAGE_SHIFT - 2) * 8 + (unsigned)(last >> (top - 3) & 7) + 1;
}

#endif
