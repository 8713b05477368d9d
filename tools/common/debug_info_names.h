// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The classes, structs and unions of a program by their names with all scopes, but those within
// functions: where one is defined that is only declared elsewhere, and which classes derive from
// one.
#ifndef PM_TOOLS_DEBUG_INFO_NAMES_H
#define PM_TOOLS_DEBUG_INFO_NAMES_H

#include "debug_info.h"

struct dw_names;

// Reads all of the program's debug information. It stays until the process ends. NULL: no memory.
struct dw_names *dw_names_make(struct dwarf *d);
// Whether it has left some out, since there are too many.
bool dw_names_limited(const struct dw_names *n);
// The name of what is at a place; "": it has none, or is not among these.
const char *dw_names_of(const struct dw_names *n, uint64_t at);
// The i-th place where something of this name is defined; 0: there are no more.
uint64_t dw_names_defined(const struct dw_names *n, const char *name, unsigned i);
// The i-th class that derives from the one of this name; 0: there are no more. Each has another
// name than the others.
uint64_t dw_names_derived(const struct dw_names *n, const char *name, unsigned i);

#endif
