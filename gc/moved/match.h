// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Finds for an address in an old build of an object the same thing in a new one.
#ifndef PM_MATCH_H
#define PM_MATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "places.h"

enum pm_match {
    PM_MATCH_FOUND,
    PM_MATCH_NONE,  // nothing that data leads to: the word is no pointer, and stays
    PM_MATCH_COPY,  // a string literal that is gone: a copy of its bytes will do
    PM_MATCH_UNSURE // it cannot be proved what it leads to now
};

struct pm_matched {
    uint64_t at;      // PM_MATCH_FOUND
    const char *text; // PM_MATCH_COPY: in the old object
    uint64_t size;    // without its end
};

#define PM_MATCH_WHY 256u

struct pm_match_by {
    bool exact;   // of a program at fixed addresses, where numbers look like addresses: only the
                  // start of a function or variable, or of a table of virtual functions, counts
    bool numbers; // things of one name that compilers number are as many as they were, and the same
};

// Both addresses are without what loading adds. `why`: for PM_MATCH_UNSURE and PM_MATCH_COPY; what
// it is, and what is wrong.
enum pm_match pm_match(const struct pm_places *old, const struct pm_places *new, uint64_t address,
                       struct pm_match_by by, struct pm_matched *found, char why[PM_MATCH_WHY]);

#endif
