// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which heap a process gets: the one it names, a default one, or none.
#ifndef PM_CHOOSE_H
#define PM_CHOOSE_H

#include <stdbool.h>

#include "base/message.h"

#define PM_CHOSEN_NAME 512

struct pm_chosen {
    bool without_heap; // the process runs on volatile memory ...
    const char *why;   // ... for this reason
    bool left_out;     // the user wants it so
    bool by_call;      // it opens its heap itself, by pmalloc_open(), and has none until then
    bool linked;       // with libpmalloc.so: it may set a root at any time, and what it has
                       // allocated by then must be in a heap
    bool default_heap; // nobody named a heap: without roots it is removed at the end
    char own[PM_CHOSEN_NAME]; // the default heap's directory
};

// Whether the user left this program out of PMALLOC_PROGRAM, or wants volatile memory.
int pm_left_out(bool *out, struct pm_error *err);
// Called after a failure that leaves no heap open: whether the process may run on volatile memory
// instead. It may if no setting names a heap or roots. Then it runs without its default heap, and
// only the line of PMALLOC_VERBOSE=1 says so. If that heap has captured roots, a message says so,
// too.
bool pm_choose_volatile(struct pm_chosen *chosen, const struct pm_error *err);
// Whether the process does without a heap, before one is looked for: it is left out, or nothing
// could ever find the heap again that it would make, or it will open one by pmalloc_open(), because
// it has called that (`by_call`) or has the name. Fills `chosen`.
int pm_choose_none(struct pm_chosen *chosen, bool by_call, struct pm_error *err);
// After pm_choose_none(). Opens the process's heap as the settings say, and fills `chosen`: locks
// it, validates it, and makes it where it is missing. On failure nothing is kept open. Called at
// the start, with one thread.
int pm_choose_heap(struct pm_chosen *chosen, struct pm_error *err);
// The same for the heap that pmalloc_open() names.
int pm_choose_called(const char *dir, bool existing, struct pm_error *err);

#endif
