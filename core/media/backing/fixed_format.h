// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The part of the format that a heap on fixed media alone has: files or devices, which are made
// once in their full size. format.h has the rest, and the rules. Each medium has:
//
//   0         struct pm_layout     where each part lies; written once, when the heap is made
//   4 KiB     struct pm_lengths    how much of each part is in use: what a file system would know
//   8 KiB     superblock | roots | slabs.N | booklog.N | morph.N | bitmaps.N | objects.a |
//             objects.b | journal; whole pages each
//   aligned   heap.N, up to the end, from a multiple of 2 MiB on
//
// A medium has the parts of one shard, N. The first one also has the superblock, the roots, the
// objects and the journal. A part has what the file of its name would have. Its number is the one
// that journals use for shard 0; parts that they never name have numbers of their own. A build that
// knows no such part leaves it alone, and a heap of before it has none.
#ifndef PM_FIXED_FORMAT_H
#define PM_FIXED_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define PM_LAYOUT_MAGIC 0x3144455849464c4dull // "MLFIXED1"
#define PM_LAYOUT_VERSION 2u                  // 1 had no place: never released
#define PM_PARTS 16u
#define PM_PART_BITMAPS 7u
#define PM_PART_OBJECTS 8u       // objects.a
#define PM_PART_OTHER_OBJECTS 9u // objects.b
#define PM_FIXED_ALIGN ((uint64_t)2 << 20)
#define PM_FIXED_LEAST ((uint64_t)16 << 20) // bytes of the smallest medium
#define PM_MEDIA 8u                         // that a heap has at most

// Bytes of heap.N that were never in use are zeroes.
#define PM_LAYOUT_ZEROED 1ull

// Which medium of its heap it is. The last two are for a later build: one that puts several shards
// on a medium of more than 1 TiB, each with a layout of its own.
struct pm_layout_place {
    uint16_t number; // from 0, in the order in which they are named
    uint16_t media;  // of the heap
    uint16_t shard;  // whose parts these are: `number`
    uint16_t shards; // of the heap: `media`
    uint64_t next;   // where the layout of another shard lies on this medium; 0: nowhere
};

struct pm_part_range {
    uint64_t at;   // from the medium's first byte
    uint64_t room; // bytes; 0: there is no such part
};

// Page 0. `magic` is stored last, when everything else of the heap is durable.
struct pm_layout {
    uint64_t magic;
    uint32_t version;
    uint32_t parts;   // PM_PARTS
    uint64_t bytes;   // of the medium that the heap takes up
    uint64_t flags;   // PM_LAYOUT_*; a reader must know every bit
    uint8_t uuid[16]; // of the superblock
    struct pm_part_range part[PM_PARTS];
    struct pm_layout_place place;
    uint8_t reserved[4096 - 48 - 16 * PM_PARTS - 16 - 8];
    uint32_t reserved_tail;
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_layout) == 4096, "one page");
_Static_assert(offsetof(struct pm_layout, part) == 48, "frozen");
_Static_assert(offsetof(struct pm_layout, place) == 304, "frozen");
_Static_assert(offsetof(struct pm_layout, crc) == 4092, "frozen");

// Page 1. Each word is a commit word of its own: it is durable before anything stored there is
// used. heap.N's length never falls, so bytes beyond it were never in use.
struct pm_lengths {
    uint64_t pages[PM_PARTS]; // sealed
    // Sealed: pages that the heap takes up since it was made larger; heap.N has the new ones. 0: as
    // many as pm_layout.bytes.
    uint64_t grown;
    uint8_t reserved[4096 - 8 * PM_PARTS - 8];
};
_Static_assert(sizeof(struct pm_lengths) == 4096, "one page");
#define PM_SALT_LENGTH(part) (0xfffffe00u + (part))
#define PM_SALT_GROWN PM_SALT_LENGTH(PM_PARTS)

#endif
