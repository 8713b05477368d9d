// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-run --doctor: whether a program can have its heap on persistent memory, with which roots,
// where, what to expect, and the line that starts it. The program is not run, and nothing changes.
#ifndef PM_TOOLS_DOCTOR_H
#define PM_TOOLS_DOCTOR_H

#include "tools/common/recipe.h"

// `command`: its words, up to NULL; it may begin with a wrapper, such as timeout. Settings are in
// pm_options. Returns 0; 1 if it cannot be started so; or target_find()'s status.
int doctor(char *const *command, const struct recipe_places *places);

#endif
