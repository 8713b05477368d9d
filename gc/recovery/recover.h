// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Recovery. The same code runs in a process before main, and offline in the tools.
//
//   1 lock, superblock, geometry              pm_heap_open, pm_heap_map
//   2 read the log and the slab headers, make extents and vslabs of them, check them
//   3 make the data that a killed process stored durable, then the state word "dirty"
//   4 finish what was published (media/log/lanes.h); make the gaps free extents, finish a resize
//     words that the program has declared transient become NULL (clear_typed.h)
//   5 mark in parallel from the roots         mark.h
//   6 sweep: free what is not marked; the log is made durable once, for all of it
//   7 PMALLOC_TRANSIENT: words of blocks that lead to what is gone become NULL (transient.h)
//
// Steps 1 and 2 write nothing, so a damaged heap is refused unchanged. A crash at any point leaves
// a heap that the same recovery handles.
#ifndef PM_RECOVER_H
#define PM_RECOVER_H

#include <stdbool.h>

#include "mark.h"
#include "out.h"

// What an opening found and did. Leaked means: allocated at the end of the last run, and not
// reachable. Extents are always known to have been allocated. Small blocks are known only if a
// clean close has left bitmaps.
struct pm_recovery {
    bool was_clean;
    bool marked;      // false: the bitmaps of a clean close stood in for marking, or nothing did
    bool uncollected; // nothing was marked or freed: every old block is taken for live
    bool leaks_exact; // leaked small blocks are counted, too
    unsigned roots, markers;
    uint64_t live_objects, live_bytes;
    uint64_t leaked_objects, leaked_bytes;
    // Extents and whole slabs that this recovery freed, and their bytes.
    uint64_t reclaimed_bytes, reclaimed_slabs, reclaimed_extents;
    uint64_t vacant_bytes;   // in free blocks of the slabs that stay
    uint64_t kept_bytes;     // in all free extents that still have space
    uint64_t slabs, extents; // in use after recovery
    uint64_t morphing;       // of these slabs, how many have live old blocks
    unsigned unfinished;     // publishes that were committed and not finished; they are now
    // Blocks that only words of a form reach that nobody has settled (disguise.h). They are kept.
    struct {
        unsigned form; // 0: there are none
        uint64_t blocks, bytes;
        const char *way; // to one that has such a word; "": not known
    } disguised;
    const struct pm_out_found *out; // words that lead out of the heap and nobody has told of; NULL
    uint64_t cleared;               // words that became NULL, or would (transient.h)
    uint64_t declared;              // the same of those that the program has declared, by type
    uint64_t reached_before;        // bytes, where less than half of it is reached now; else 0
    uint64_t overflows;             // how often noted stripes were scanned again
    double seconds, mark_seconds;
};

struct pm_recover_options {
    bool write;  // false: nothing on media changes; the result is what a recovery would find
    bool borrow; // without `write`, for pm_heap_borrow(): see below
    // Set by pm_recover() itself: what it finds is held (blocks/kinds.h); it is known which pages
    // are holes.
    bool hold, asked_for_holes;
    bool check;  // without `write`: only steps 1 and 2, and what the publishes say
    bool beside; // PMALLOC_COLLECT=background: what is kept is collected later (beside.h)
    struct pm_mark_options mark;
};

// Steps 2 to 7, for a heap that is open and mapped. No other thread uses the heap. If the heap has
// no roots, nothing is reachable, so everything is freed.
//
// Under PMALLOC_COLLECT=later nothing is marked or freed after a crash, unless kept.h says that the
// start must collect. Every block of the heap's slabs and every extent is taken for allocated,
// whoever freed it before the crash, so nothing that is live is handed out. New blocks come from
// the gaps between the extents and from the frontier.
//
// For a heap that is to be borrowed nothing is marked. Every block of its slabs and every extent is
// taken for allocated, and is freed when the program frees it. New blocks lie beyond the end of
// heap.0. So the pages of the file stay shared for as long as possible, and a start takes as long
// as reading the log and the slab headers. This needs no clean heap: as under PMALLOC_COLLECT=later
// nothing that was live at a kill is handed out.
int pm_recover(const struct pm_recover_options *options, struct pm_recovery *result,
               struct pm_error *err);

// Makes durable what was stored in the heap and its root images. A power failure could still undo
// such stores, and bring back pointers to blocks that nothing reaches now. `unfinished`: also if
// there are no roots.
int pm_write_back_data(bool unfinished, struct pm_error *err);

#endif
