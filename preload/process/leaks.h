// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_LEAKS: which blocks nothing reaches, at the end of the program. All threads are held
// while gc/live marks what their stacks and registers, thread-local storage and the data of all
// objects reach. Nothing is freed.
#ifndef PM_PROCESS_LEAKS_H
#define PM_PROCESS_LEAKS_H

#include "base/message.h"
#include "live/leaks.h"
#include "live/live_mark.h"

// What PMALLOC_LEAKS needs from the start on.
int pm_leaks_begin(struct pm_error *err);
// Counts the leaks of this moment. The caller holds no lock of ours, and is not in a signal handler
// that has interrupted the allocator. `in_use`: all blocks.
int pm_leaks_find(struct pm_leaks *leaks, struct pm_live_sum *in_use, struct pm_error *err);

// The same while a tool has halted all other threads. `roots` gives all roots to pm_live_root().
struct pm_leaks_found {
    struct pm_leaks *leaks;
    struct pm_live_sum *in_use;
    unsigned markers;         // of pm_live_begin()
    struct pm_leak_row *site; // one row for each of PM_STACKS; NULL: no stacks are recorded
};
int pm_leaks_mark(struct pm_leaks_found *found, int roots(struct pm_error *), struct pm_error *err);
// The same in steps, between which the program runs (live_mark.h). After the first one
// pm_marker_start() follows. pm_leaks_look() finds what was stored to since. Unless that is the
// last look, it is marked beside the program, too (pm_marker_go_on()).
int pm_leaks_begin_beside(struct pm_leaks_found *found, int roots(struct pm_error *),
                          struct pm_error *err);
int pm_leaks_look(unsigned round, bool *last, struct pm_error *err);
int pm_leaks_end_beside(struct pm_leaks_found *found, int roots(struct pm_error *),
                        struct pm_error *err);
// Calls `each` for the sites with the most bytes, those first, and empties their rows. Returns the
// bytes of the others.
uint64_t pm_leaks_sites(struct pm_leak_row *row,
                        void each(uint32_t site, const struct pm_leak_row *row, void *arg),
                        void *arg);

// Prints the report, if PMALLOC_LEAKS asks for one.
void pm_leaks_report(void);

#endif
