// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints at which instants a process has taken its commits (PMALLOC_COMMIT), and what kept the last
// of them from lying between operations.
#ifndef PM_TOOLS_INSTANTS_PRINT_H
#define PM_TOOLS_INSTANTS_PRINT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "json.h"
#include "media/journal/journal.h"

struct instants {
    struct pm_instants of;
    struct pm_pauses pauses; // of the same commits; none: not on record
    uint64_t time;           // of the last commit that they count
    const char *heap;        // its name,
    uint64_t base, end;      // and its addresses
    pid_t process;           // that has it open; 0: it is at rest, and this tool has
};

// Of the heap that is open. False: nothing is on record.
bool instants_of_heap(const char *heap, struct instants *out);
// "12 between operations, 0 after a wait ..., 3 others"; and the thread or lock of the last of
// these, and threads whose locks are not seen, each after `before`, if there are any.
void instants_text(const struct instants *i, const char *before);
// An object `instants`.
void instants_json(struct json *j, const struct instants *i);

#endif
