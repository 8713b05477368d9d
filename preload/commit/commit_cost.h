// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the commits of this process have cost: a line of PMALLOC_STATS=1 and malloc_stats().
#ifndef PM_COMMIT_COST_H
#define PM_COMMIT_COST_H

#include <stdint.h>

struct pm_commit_cost;
struct pm_gate_passed;

// With the commit lock. The threads were held for so long, for a commit of this cost.
void pm_commit_was_held(uint64_t ns, const struct pm_commit_cost *of);
// The same; a round before the instant, counted from 0, has found so many pages.
void pm_commit_round_was(unsigned round, uint64_t pages);
// With the commit lock, or at the end of the program, and before pm_commit_finish(): at which
// instant it was taken.
void pm_commit_passed(const struct pm_gate_passed *passed);
// With the commit lock. A commit that was begun at `since` counts, and is in the files.
void pm_commit_was_made(uint64_t since);
// With the commit lock. There was no commit; the next one that succeeds says so.
void pm_commit_has_failed(void);
// Nothing where there was no commit.
void pm_commit_cost_say(void);

#endif
