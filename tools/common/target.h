// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The program that pmalloc-run is to start: where it is, and whether a preloaded library can get into it.
#ifndef PM_TOOLS_TARGET_H
#define PM_TOOLS_TARGET_H

#include <stdbool.h>
#include <stddef.h>

enum { TARGET_CANNOT_RUN = 126, TARGET_NOT_FOUND = 127 };

struct target {
    char path[4096];
    char interpreter[256]; // of a script: what really runs; "" for a binary
    char env_program[256]; // where that is env: the name of the file that it starts in its place
};

// 0, or the exit status with the reason in `why`.
int target_find(const char *name, struct target *out, char *why, size_t size);

// Fills `why`; returns `status`.
__attribute__((format(printf, 4, 5))) int target_refuse(int status, char *why, size_t size,
                                                        const char *format, ...);
// Of a 64-bit x86 ELF file, as target_find().
int target_check_elf(const char *path, char *why, size_t size);

#endif
