// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// From a symbol of a C++ variable to the name that its author wrote. Reads only what occurs in
// names of variables that can be roots: no templates, no operators (mangling: Itanium C++ ABI,
// 5.1).
#ifndef PM_CXXNAME_H
#define PM_CXXNAME_H

#include <stdbool.h>
#include <stddef.h>

// Writes the name as c++filt does, but without parameters and ABI tags. Examples:
//
//   app::store
//   (anonymous namespace)::names
//   Store::instance()::store          a static of a function
//
// False: the symbol is no such name, or the name does not fit. `symbol` is read up to its NUL, and
// at most `room` bytes of it.
bool pm_cxxname_plain(const char *symbol, size_t room, char *out, size_t len);

#endif
