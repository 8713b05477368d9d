// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The types of a program's variables, from its debug information: of the program that last used the
// open heap, or of one that is to be started.
#ifndef PM_TOOLS_PROGRAM_TYPES_H
#define PM_TOOLS_PROGRAM_TYPES_H

#include "base/message.h"
#include "debug_info.h"
#include "media/format.h"

struct program_types {
    char path[4096];
    struct pm_elf program, apart;
    struct dwarf *types; // NULL: not loaded, or not there
    bool looked_for, looked_apart;
    uint64_t base; // what loading added to the program's addresses
};

// Whether it is the build that the heap has on record.
bool program_is_recorded(const struct pm_elf *f, const struct pm_program *on_record);
// Opens a program, which stays open until the process ends.
int program_types_of(struct program_types *t, const char *path, struct pm_error *err);
// Its types, if it has any.
bool program_types_load(struct program_types *t);
// Of a stripped program, its debug file. NULL: there is none.
const struct pm_elf *program_types_apart(struct program_types *t);
// Fails with what to do about types that are not there.
int program_types_missing(const struct program_types *t, struct pm_error *err);
// Of the program that last used the open heap. Fails if it is not there, is another build, or has
// no types.
int program_types_open(struct program_types *t, const char *heap, struct pm_error *err);
// The program alone, in whatever build lies there now.
int program_types_now(struct program_types *t, const char *heap, struct pm_error *err);

// The variable of the program in which a place in a root of the heap lies: its name, its type, and
// where in it the place is. False: there is none, or it is not known.
bool program_variable(struct program_types *t, const struct pm_root *root, uint64_t place,
                      char *name, size_t size, uint64_t *type, uint64_t *offset);

#endif
