// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How a walk through a table of types came to a type: as an expression of C.
#ifndef PM_TOOLS_TYPE_WAY_H
#define PM_TOOLS_TYPE_WAY_H

#include "type_table.h"

enum type_step { TYPE_STEP_ROOT, TYPE_STEP_POINTER, TYPE_STEP_ELEMENT, TYPE_STEP_MEMBER };

// A type that was reached. Those that were reached first come first.
struct type_visit {
    uint32_t type, other; // `other`: the type of the old table that it is compared with
    uint32_t from;        // number of the visit that led here
    uint32_t step;        // enum type_step
    uint32_t number;      // of the root, or of the member
};

struct type_visits {
    struct type_visit *visit;
    uint32_t count;
    bool failed;
};

// Appends one.
void type_visit_add(struct type_visits *v, const struct type_visit *visit);
// Writes how visit `at` is reached: "*shop->orders[]". Returns `out`.
const char *type_way(const struct type_table *t, const struct type_visits *v, uint32_t at,
                     char *out, size_t size);

#endif
