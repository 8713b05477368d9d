// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The size classes of small blocks: steps of 16 bytes up to 256, then four classes in each doubling
// up to 16 KiB. Class numbers start at 1, so that 0 can mean "no block" wherever a class is stored,
// and rise with the size. Slab headers name classes by number.
#ifndef PM_SIZECLASS_H
#define PM_SIZECLASS_H

#include <stddef.h>
#include <stdint.h>

#include "geometry.h"

#define PM_CLASSES 40u
#define PM_SMALL_MAX ((size_t)16384)

// X(class, block size, next smaller block size)
// clang-format off
#define PM_CLASS_TABLE(X)                                                                          \
    X(1, 16, 0) X(2, 32, 16) X(3, 48, 32) X(4, 64, 48)                                             \
    X(5, 80, 64) X(6, 96, 80) X(7, 112, 96) X(8, 128, 112)                                         \
    X(9, 144, 128) X(10, 160, 144) X(11, 176, 160) X(12, 192, 176)                                 \
    X(13, 208, 192) X(14, 224, 208) X(15, 240, 224) X(16, 256, 240)                                \
    X(17, 320, 256) X(18, 384, 320) X(19, 448, 384) X(20, 512, 448)                                \
    X(21, 640, 512) X(22, 768, 640) X(23, 896, 768) X(24, 1024, 896)                               \
    X(25, 1280, 1024) X(26, 1536, 1280) X(27, 1792, 1536) X(28, 2048, 1792)                        \
    X(29, 2560, 2048) X(30, 3072, 2560) X(31, 3584, 3072) X(32, 4096, 3584)                        \
    X(33, 5120, 4096) X(34, 6144, 5120) X(35, 7168, 6144) X(36, 8192, 7168)                        \
    X(37, 10240, 8192) X(38, 12288, 10240) X(39, 14336, 12288) X(40, 16384, 14336)
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

// All classes, from the smallest blocks to the largest.
#define PM_EACH_CLASS(cls) for (unsigned cls = 1; cls <= PM_CLASSES; cls++)

// The index of the block that contains byte `offset` of a slab. It is >= `blocks` if the byte lies
// after the last block.
static inline unsigned pm_block_index(unsigned cls, uint32_t offset) {
    return (unsigned)(((uint64_t)offset * pm_classes[cls].reciprocal) >> 32);
}

// The smallest class whose blocks have `size` bytes and are all aligned to `align` (a power of
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
