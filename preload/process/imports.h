// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the objects of this process ask of each other.
#ifndef PM_IMPORTS_H
#define PM_IMPORTS_H

#include <stdbool.h>

// Whether the program, or a library that is loaded, was linked with a use of `name`. A program that
// looks it up by dlsym() was not.
bool pm_imports(const char *name);

#endif
