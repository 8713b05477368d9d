// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The table of types as a file of a heap.
#ifndef PM_TOOLS_TYPE_FILE_H
#define PM_TOOLS_TYPE_FILE_H

#include "roots/elf_file.h"
#include "type_table.h"

enum type_file {
    TYPE_FILE_NONE,
    TYPE_FILE_READ,
    TYPE_FILE_DAMAGED,
    TYPE_FILE_OTHER,  // another version of PMAlloc has made it
    TYPE_FILE_FAILED, // errno says why
};

// `dir`: the heap's directory, the first one if it has several.
enum type_file type_file_read(int dir, struct type_table *out);
// Makes it durable, and then gives it its name. False, with errno: the one before is still there.
bool type_file_write(int dir, struct type_table *t);
// Its name, for messages.
const char *type_file_name(void);

// What the table calls a build of a program.
void type_build_of(const struct pm_elf *program, struct type_build *out);

#endif
