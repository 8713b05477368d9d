// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Lanes: redo logs on media, so that several 8-byte stores become durable together. Each lane
// serves one publish at a time:
//
//   1  the stores are written into the lane          durable, but for those in the first line, with
//                                                    all that was flushed before
//   2  its commit word says how many they are        durable: from here on they will be made
//   3  the stores are made                           durable
//   4  its other word says that they were made       durable: the words may change again
//
// An end of the process or of the power before 2 leaves none of the stores. After it, recovery
// makes all of them, perhaps for the second time.
//
// A heap gets its lanes at its first publish of more than one store. One that never publishes stays
// as it was.
#ifndef PM_LANES_H
#define PM_LANES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "base/message.h"
#include "media/lane_format.h"

// A store to be made. `value` is the word as it will be on media.
struct pm_lane_target {
    uint64_t *at;   // in this process; NULL: PM_PLACE_PINNED
    uint64_t where; // on media, see pm_lane_store
    uint64_t value;
};

static inline uint64_t pm_lane_where(enum pm_lane_place place, uint64_t offset) {
    return (uint64_t)place << PM_PLACE_SHIFT | offset;
}

// Makes these stores, all or none, durable on return. The heap is shared, and the caller has
// `lane` locked. A single store needs no lane: then `lane` is not used. False with errno: the file
// system has no space for the lanes, and nothing was stored.
bool pm_lanes_publish(unsigned lane, const struct pm_lane_target *target, unsigned count);
// Makes the lanes, if the heap has none. False with errno: there is no space. The caller holds no
// lock of the rank of an extent lock.
bool pm_lanes_make(void);

// Locks a lane that is free, or waits for one. `hint` spreads the threads.
unsigned pm_lane_lock(unsigned hint);
void pm_lane_unlock(unsigned lane);
// For forks and the end of the program.
extern struct pm_lock pm_lane_locks[PM_LANES];

// ---- for recovery ----

// Reads and checks all lanes. A store into the file `roots` has to lie in [images, images +
// length). *unfinished becomes how many lanes have a publish that was committed, not finished.
int pm_lanes_check(uint64_t images, uint64_t length, unsigned *unfinished, struct pm_error *err);
// Makes durable what a killed process left in the lanes, and then all stores of these publishes.
int pm_lanes_finish(struct pm_error *err);
// Calls `fn` for the stores of each of these publishes.
void pm_lanes_each(void (*fn)(const struct pm_lane_store *store, uint32_t count, void *arg),
                   void *arg);
// The bits of the pinned blocks' word at `place`, as they will be when these publishes are
// finished; `bits` are those on media.
uint32_t pm_lanes_pinned(uint64_t place, uint32_t bits);

#endif
