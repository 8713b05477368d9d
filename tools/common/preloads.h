// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The library that pmalloc-run preloads into a program: where it is, and the environment for it.
#ifndef PM_TOOLS_PRELOADS_H
#define PM_TOOLS_PRELOADS_H

#include <limits.h>
#include <stdbool.h>

#include "base/message.h"

// Writes the directory of this program, with a slash behind it.
int preloads_folder(char self[PATH_MAX], struct pm_error *err);
// The path of the library. It lies beside this program, as in a build tree, or in the library
// directory of the installation. `gc`: the one that stands in for libgc. NULL: it is not there.
const char *preloads_find(bool gc, struct pm_error *err);
// Programs find libgc by the preload, because that has its name. libgccpp they look for in a path.
int preloads_stand_in(const char *path, struct pm_error *err);
// Puts it before what LD_PRELOAD names.
int preloads_add(const char *path, struct pm_error *err);

#endif
