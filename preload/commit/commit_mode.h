// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What PMALLOC_COMMIT asks for:
//
//   api          when the program calls pmalloc_commit()
//   TIME         the same, and each TIME by PMAlloc's thread (background.h)
//   idle[:TIME]  the same, and by that thread while the program waits (idle.h)
//   output:0     the same, and before what the program says leaves the process (triggers.h)
//   output:TIME  the same, but one commit for all that is said in TIME at most (outbox.h)
//   output       the same, TIME being 5ms
#ifndef PM_COMMIT_MODE_H
#define PM_COMMIT_MODE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

// Checks the settings. PM_USAGE: they are wrong.
int pm_commits_options(struct pm_error *err);
// Whether PMALLOC_COMMIT is set.
bool pm_commits_wanted(void);
enum pm_commits_mode {
    PM_COMMITS_API,
    PM_COMMITS_TIME,
    PM_COMMITS_IDLE,
    PM_COMMITS_OUTPUT,
};
enum pm_commits_mode pm_commits_mode(void);
// TIME in milliseconds; 0: there is none.
uint64_t pm_commits_interval(void);
// Of `output`, in microseconds; 0: answers do not wait for each other.
uint64_t pm_commits_answers_us(void);
// No commit at any instant: `output:strict`.
bool pm_commits_are_strict(void);

#endif
