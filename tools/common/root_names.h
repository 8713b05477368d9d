// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What can be named as a root of a program: its variables, or its sections if it is stripped.
#ifndef PM_TOOLS_ROOT_NAMES_H
#define PM_TOOLS_ROOT_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/message.h"

struct root_name {
    char text[256]; // as PMALLOC_ROOTS takes it
    char note[160]; // its type; or what it is
    uint64_t offset, size;
    bool zero;   // at the start of the program
    bool likely; // zero, and a pointer or something that has one in it
};

struct root_names {
    struct root_name *name; // the likely ones first, then by place
    size_t count, likely;
    bool stripped;   // these are sections
    bool typed;      // the types are known
    bool cooperates; // it calls functions of pmalloc.h
};

// Reads the program at `path`.
int root_names_find(const char *path, struct root_names *out, struct pm_error *err);
// Writes the likely ones, ", " between them, as far as they fit.
void root_names_likely(const struct root_names *names, char *out, size_t size);
// Prints them as a table.
void root_names_print(const struct root_names *names, const char *program);

#endif
