// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Size classes of small blocks: 16-byte steps to 128, then four per doubling to 16 KiB. Class numbers start
// at 1, so that 0 can mean "no block" wherever a class is stored.
#ifndef PM_SIZECLASS_H
#define PM_SIZECLASS_H

#include <stddef.h>
#include <stdint.h>

#include "layout.h"

#define PM_CLASSES 36u
#define PM_SMALL_MAX ((size_t)16384)

// X(class, block size, next smaller block size)
// clang-format off
#define PM_CLASS_TABLE(X)                                                                          \
    X(1, 16, 0) X(2, 32, 16) X(3, 48, 32) X(4, 64, 48)                                             \
    X(5, 80, 64) X(6, 96, 80) X(7, 112, 96) X(8, 128, 112)                                         \
    X(9, 160, 128) X(10, 192, 160) X(11, 224, 192) X(12, 256, 224)                                 \
    X(13, 320, 256) X(14, 384, 320) X(15, 448, 384) X(16, 512, 448)                                \
    X(17, 640, 512) X(18, 768, 640) X(19, 896, 768) X(20, 1024, 896)                               \
    X(21, 1280, 1024) X(22, 1536, 1280) X(23, 1792, 1536) X(24, 2048, 1792)                        \
    X(25, 2560, 2048) X(26, 3072, 2560) X(27, 3584, 3072) X(28, 4096, 3584)                        \
    X(29, 5120, 4096) X(30, 6144, 5120) X(31, 7168, 6144) X(32, 8192, 7168)                        \
    X(33, 10240, 8192) X(34, 12288, 10240) X(35, 14336, 12288) X(36, 16384, 14336)
// clang-format on

// Granules (16 bytes, rounded up) to class; entry 0 serves malloc(0).
extern const uint8_t pm_class_of_granules[PM_SMALL_MAX / 16 + 1];

struct pm_class {
    uint32_t size;       // bytes of a block
    uint32_t blocks;     // per slab
    uint32_t reciprocal; // ceil(2^32 / size): x / size == (x * reciprocal) >> 32 for x < 64 KiB
    uint32_t tcache_cap; // blocks a thread may keep
};
extern const struct pm_class pm_classes[PM_CLASSES + 1];

// `size` at most PM_SMALL_MAX.
static inline unsigned pm_size_to_class(size_t size) {
    return pm_class_of_granules[(size + 15) >> PM_GRANULE_SHIFT];
}

// Index of the block that contains byte `offset` of a slab; may be >= blocks in the slab's unused tail.
static inline unsigned pm_block_index(unsigned cls, uint32_t offset) {
    return (unsigned)(((uint64_t)offset * pm_classes[cls].reciprocal) >> 32);
}

// The smallest class whose blocks are all aligned to `align` (a power of two) and hold `size`; 0 when only
// an extent will do. Slabs are 64 KiB aligned and start with block 0, so a block is aligned exactly when
// its class's size is a multiple of the alignment.
unsigned pm_aligned_class(size_t size, size_t align);

// Large sizes are rounded to eighths of a power of two (never finer than a page), so that freed extents fit
// the next request of about the same size. Returns pages; 0 when `size` cannot be represented.
uint64_t pm_large_pages(size_t size);

#endif
