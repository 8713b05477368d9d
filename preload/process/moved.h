// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A heap whose program or libraries have moved (gc/moved/): before the process recovers it, a child
// makes its words lead to the same things. And what this process has loaded is put on record.
#ifndef PM_MOVED_H
#define PM_MOVED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/message.h"

// For a heap that was just opened and is not mapped. *again: it is to be opened once more, which
// brings the changed words in. On failure nothing was changed.
int pm_moved_look(bool *again, struct pm_error *err);
// PMALLOC_REBASE=look and only: says what was found or done, and ends the process. For a heap that
// is open and not mapped.
void pm_moved_end_if_asked(void);
// Says in one line what the look has changed, once the heap is open again.
void pm_moved_say(void);

// Whether the look has found that something has moved.
bool pm_moved_was(void);

// Puts on record what is loaded, where the heap has roots or may get some. Keeps errno. Any thread;
// several at once wait for each other.
void pm_moved_note(void);
// The same, if nothing is on record yet: the heap is about to get its first root.
void pm_moved_note_first(void);
// Keeps the places of libraries that are not loaded yet free of all else. For a heap that is open.
void pm_moved_keep_free(void);
// A library is about to be loaded, perhaps: it is to come to the place where it lay. True: then the
// place is to be released after that.
bool pm_moved_hold_place(const char *file);
// After that: releases the place if it was `held`. If a library was loaded, it is put on record,
// and words that lead to where it lay before are changed.
void pm_moved_loaded(bool held, bool loaded);

#endif
