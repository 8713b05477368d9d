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
    char own[512];     // its directory
};

// Whether the user left this program out of PMALLOC_PROGRAM, or wants volatile memory.
int pm_left_out(bool *out, struct pm_error *err);
// After a failure that leaves no heap open: whether the process can do without. A default heap is a courtesy, and
// goes without a word but PMALLOC_VERBOSE's line, unless it is known to keep something.
bool pm_choose_volatile(struct pm_choice *choice, const struct pm_error *err);
// Opens (locks, validates, makes) the process's heap as the settings say, and fills `choice`. On failure nothing is
// held. Single-threaded, at start.
int pm_choose_heap(struct pm_choice *choice, struct pm_error *err);

// Looks at one heap, other than `own`, in the directory of this user's default heaps, which `fd` is, and removes it when
// its process is gone and no root reaches it. Before the own heap is opened.
void pm_choice_tidy(int fd, const char *parent, const char *own);

#endif
