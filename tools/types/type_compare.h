// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Two tables of types, of two builds: whether the new build reads the old one's data as they are.
// From each root that both have, both tables are walked at once. So types need no names, and may
// have other ones, as different compilers give them. What is compared: sizes, where members lie,
// and what they are (a number, a pointer, a struct ...). A member that only has another name is the
// same; two that have changed places are not.
#ifndef PM_TOOLS_TYPE_COMPARE_H
#define PM_TOOLS_TYPE_COMPARE_H

#include "type_table.h"

enum { TYPE_DIFFERENCES = 10, TYPE_DIFFERENCE_TEXT = 600, TYPE_PATH = 200 };

struct type_difference {
    char text[TYPE_DIFFERENCE_TEXT];
    uint64_t old_size; // of blocks that begin with what has changed; 0: not known
};

struct type_differences {
    struct type_difference one[TYPE_DIFFERENCES]; // the nearest to roots
    unsigned count;                               // of all, also those that have no room
    unsigned roots, types;                        // that were compared
    bool failed;                                  // no memory
};

void type_compare(const struct type_table *old, const struct type_table *new,
                  struct type_differences *out);

// ---- the walk from one root, for pmalloc-info ----

// What the walk has not gone through: `way` leads there, in the words of C.
typedef void type_end_fn(const char *way, const char *why, void *arg);
// Calls `fn` for each such end of a root's walk, one for each type. Returns the number of structs
// that were reached, and sets their bits in `reached` (by type).
uint32_t type_ends(const struct type_table *t, const struct pm_types_root *root, type_end_fn *fn,
                   void *arg, bool *reached);

#endif
