// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The program that pmalloc-run is to start: where it is, and whether a library can be preloaded
// into it.
#ifndef PM_TOOLS_TARGET_H
#define PM_TOOLS_TARGET_H

#include <stdbool.h>
#include <stddef.h>

enum { TARGET_CANNOT_RUN = 126, TARGET_NOT_FOUND = 127 };

struct target {
    char path[4096];
    char interpreter[256]; // for a script, the program that runs it; "": not a script
    char env_program[256]; // if the interpreter is env, the name of the program that env starts
};

// Finds and checks a program. Returns 0; or the exit status, and writes the reason to `why`.
int target_find(const char *name, struct target *out, char *why, size_t size);

// Fills `why`; returns `status`.
__attribute__((format(printf, 4, 5))) int target_refuse(int status, char *why, size_t size,
                                                        const char *format, ...);
// Checks a 64-bit x86 ELF file. Returns the same as target_find().
int target_check_elf(const char *path, char *why, size_t size);
// The library of this number, from 0 on, that a program names; NULL: it names no more.
struct pm_elf;
const char *target_needs(const struct pm_elf *f, size_t number);

#endif
