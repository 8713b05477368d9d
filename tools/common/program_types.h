// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The types of the program that last used the open heap, from its debug information.
#ifndef PM_TOOLS_PROGRAM_TYPES_H
#define PM_TOOLS_PROGRAM_TYPES_H

#include "base/message.h"
#include "debug_info.h"

struct program_types {
    struct pm_elf program;
    struct dwarf *types;
    uint64_t base; // what loading added to the program's addresses
};

// Fails if the program is not there, is another build, or has no types. They stay open until the
// process ends.
int program_types_open(struct program_types *t, const char *heap, struct pm_error *err);

#endif
