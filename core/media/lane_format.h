// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A lane is the redo log of one publish: stores of 8 bytes that become durable together. The lanes
// follow pm_super_file in the superblock's file, if the heap has PM_INCOMPAT_LANES.
#ifndef PM_LANE_FORMAT_H
#define PM_LANE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define PM_LANES 32u
#define PM_LANE_STORES 124u
#define PM_SALT_LANE(lane) (0xffffff00u + (lane))

// Where a store goes: the highest two bits say from where its offset in bytes, the other bits, is
// counted. A slot's value is the word on media (pm_slot_word()). A pinned block's are pinned.h's.
enum pm_lane_place {
    PM_PLACE_PINNED = 0, // bits of a word; only in a heap with PM_INCOMPAT_PINNED
    PM_PLACE_HEAP = 1,   // PM_HEAP_BASE
    PM_PLACE_SLOT = 2,   // the first root slot
    PM_PLACE_IMAGE = 3,  // the first byte of the file `roots`
};
#define PM_PLACE_SHIFT 62
#define PM_PLACE_OFFSET ((1ull << PM_PLACE_SHIFT) - 1)

struct pm_lane_store {
    uint64_t where;
    uint64_t value;
};

// `commit` is sealed: the number of the lane's publish above PM_LANE_TURN, and below it the number
// of its stores. `ended` becomes the same word once the stores are durable, so they are in force
// while the two differ. Both are words of zeroes in a lane that was never used. They lie in the
// first line and in the last, so that a publish flushes no line twice. `crc` covers the stores; the
// first ones lie in its line and before `commit`, so they need no flush of their own.
struct pm_lane {
    uint64_t commit;
    uint32_t crc;
    uint32_t reserved;
    struct pm_lane_store store[PM_LANE_STORES];
    uint64_t unused[5];
    uint64_t ended;
};
#define PM_LANE_TURN 256u // above any number of stores
#define PM_LANE_FIRST 3u  // stores in the first line
_Static_assert(sizeof(struct pm_lane) == 2048, "frozen");
_Static_assert(offsetof(struct pm_lane, store[PM_LANE_FIRST]) == 64, "they fill the line");
_Static_assert(offsetof(struct pm_lane, ended) == 2040, "in the last line");
#define PM_LANES_BYTES (PM_LANES * sizeof(struct pm_lane))

#endif
