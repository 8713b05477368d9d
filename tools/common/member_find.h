// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Where a member lies in a variable: ".db", "[3].head", "[1][2]", as C writes it behind the
// variable's name. Members of base classes, and of structs and unions without a name, need no more
// than their own name. member_name.h is the other way round.
#ifndef PM_TOOLS_MEMBER_FIND_H
#define PM_TOOLS_MEMBER_FIND_H

#include "base/message.h"
#include "debug_info.h"

struct member {
    uint64_t offset, size; // in the variable
    uint64_t type;         // of an array of arrays with less indices than it has: of its elements
};
// `name`: how messages call the variable, whose type is given. PM_USAGE: there is no such member,
// or none that a root can be.
int member_find(struct dwarf *d, uint64_t type, const char *name, const char *path,
                struct member *out, struct pm_error *err);

#endif
