// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// C++ variables by the names that their authors know. Of the mangling (Itanium C++ ABI, 5.1) what names of variables
// that can be roots are made of: no templates, no operators.
#ifndef PMALLOC_GC_CXXNAME_H
#define PMALLOC_GC_CXXNAME_H

#include <stdbool.h>
#include <stddef.h>

// Writes what c++filt would, but without parameters and ABI tags: "app::store", "(anonymous namespace)::names",
// "Store::instance()::store" for a static of a function. False when the symbol is none of these or does not fit;
// `symbol` is read up to its NUL or `room` bytes.
bool cxxname_plain(const char *symbol, size_t room, char *out, size_t len);

#endif
