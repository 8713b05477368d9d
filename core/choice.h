// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which heap a process gets: the one it names, a default one, or none.
#ifndef PM_CHOICE_H
#define PM_CHOICE_H

#include <stdbool.h>

#include "message.h"

struct pm_choice {
    bool without_heap; // it is to run on volatile memory ...
    char why[512];     // ... for this reason
    bool default_heap; // nobody named one: it goes with the process unless it has roots
};

// Whether the user left this program out of PMALLOC_PROGRAM, or wants volatile memory.
int pm_left_out(bool *out, struct pm_error *err);
// The process does without a heap, and the user did not ask for that: says so, unless PMALLOC_VERBOSE's line is going to.
void pm_choose_volatile(struct pm_choice *choice, const struct pm_error *err);
// Opens (locks, validates, makes) the process's heap as the settings say, and fills `choice`. On failure nothing is
// held. Single-threaded, at start.
int pm_choose_heap(struct pm_choice *choice, struct pm_error *err);

// Looks at one heap, other than `own`, in the directory of this user's default heaps, and removes it when its process is
// gone and no root reaches it. Before the own heap is opened.
void pm_choice_tidy(const char *parent, const char *own);

#endif
