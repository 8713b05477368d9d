// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints what the last recovery of a heap took and freed.
#ifndef PM_TOOLS_RECOVERED_PRINT_H
#define PM_TOOLS_RECOVERED_PRINT_H

#include "json.h"
#include "media/format.h"

// Of the heap that is open: a line, or an object `recovered`. Nothing if it was never recovered.
void recovered_text(void);
void recovered_json(struct json *j);

#endif
