// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints the loaded objects on record (roots/objects_record.h) of the heap that is open: what words
// of it may lead to, and which of these files are no more what they were. A line on standard error
// says that one could not be read.
#ifndef PM_TOOLS_OBJECTS_PRINT_H
#define PM_TOOLS_OBJECTS_PRINT_H

#include "json.h"

// Nothing, if nothing is on record.
void objects_text(void);
// An array `objects`; empty, if nothing is on record.
void objects_json(struct json *j);

#endif
