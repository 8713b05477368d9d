// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_COLLECT=background: a collection beside the program, of what was garbage when it started.
//
//   start          keeps everything, as `later` does; takes a snapshot (media/backing/snapshot.h)
//                  of the heap as the crash left it, T0; remembers what lies where; scans the roots
//   marking        reads the snapshot only. The program and its commits go on
//   sweeping       frees each old block that is not marked, as free() would
//
// Why this is safe: each old address that the program can ever have is reachable in T0. At the
// start the program has no old address but through the roots. A load yields one either from a word
// that has not changed since T0, in a block that T0 reaches; or from a word into which the program
// stored an address that it had already. So a block without a mark is garbage, whatever the program
// does meanwhile. And it is still there: nobody can free it, so its slab or extent is what it was.
// New blocks are not swept: they lie in blocks that were freed, which are marked; or in extents
// that T0 does not have.
//
// A kill at any time leaves a heap as any: the collection writes nothing of its own to media. Steps
// are called by one thread. In between, the process may end, or part from the heap: then
// pm_beside_stop() is called, and what is not swept waits for another collection.
#ifndef PM_BESIDE_H
#define PM_BESIDE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

enum pm_beside_stage { PM_BESIDE_NONE, PM_BESIDE_MARK, PM_BESIDE_SWEEP, PM_BESIDE_DONE };

// What it has done so far; relaxed. Any thread may read it.
struct pm_beside_counters {
    _Atomic uint32_t stage;         // enum pm_beside_stage
    _Atomic uint64_t blocks, bytes; // freed
    _Atomic uint64_t milliseconds;  // from the start to the end of the sweep
};
extern struct pm_beside_counters pm_beside_counters;

// Once, in a heap in commit mode that was opened without a collection; the program does not run
// yet. False, and `err` says why: there is none.
bool pm_beside_begin(struct pm_error *err);
static inline bool pm_beside_is_on(void) {
    uint32_t stage = atomic_load_explicit(&pm_beside_counters.stage, memory_order_relaxed);
    return stage == PM_BESIDE_MARK || stage == PM_BESIDE_SWEEP;
}
// Does a part of it: about as much as reading `bytes` bytes. The caller holds locks that keep away
// forks and the end of the program; in the sweep commits, too. False, and `err` says what could not
// be read: nothing was freed, and no further step may come.
#define PM_BESIDE_STEP ((uint64_t)512 << 10) // less than a millisecond
bool pm_beside_step(uint64_t bytes, struct pm_error *err);
// The process ends, or parts from the heap. No step is under way.
void pm_beside_stop(void);
// In a forked child.
void pm_beside_forked(void);

#endif
