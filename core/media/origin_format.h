// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The part of the format that tells a heap from a copy of its files. format.h has the rest, and the
// rules.
#ifndef PM_ORIGIN_FORMAT_H
#define PM_ORIGIN_FORMAT_H

#include <stdint.h>

// The file that the superblock is, as of the last opening for writing. A copy is another file. It
// says something while the heap is not clean. There is no number of a device, because that changes
// from boot to boot. All is 0: not known.
struct pm_origin {
    uint64_t ino;      // inode number; 0: those of this file system need not last
    uint64_t birth;    // when the file was made, seconds since the epoch,
    uint32_t birth_ns; // and nanoseconds; both 0: the file system does not say
    uint32_t reserved;
    uint64_t seal; // the CRC-32C of all bytes before it, sealed; 0: what is there is not known
};
_Static_assert(sizeof(struct pm_origin) == 32, "half a line");
#define PM_SALT_ORIGIN 0xfffffff8u

#endif
