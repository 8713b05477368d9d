// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints how often a heap has followed its program to another build or place.
#ifndef PM_TOOLS_REBASED_PRINT_H
#define PM_TOOLS_REBASED_PRINT_H

#include "json.h"

// Of the heap that is open: a line, or an object `rebased`. Nothing if it never did.
void rebased_text(void);
void rebased_json(struct json *j);

#endif
