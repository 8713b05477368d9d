// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the tools say of a copy of a heap that was not clean (media/open/origin.h).
#ifndef PM_TOOLS_COPY_PRINT_H
#define PM_TOOLS_COPY_PRINT_H

#include "base/message.h"

// What such a copy guarantees.
#define COPY_GUARANTEE                                                                             \
    "a copy: not one instant, unless no program used the heap while it was copied"

// If such a copy is damaged, adds what may be the reason.
void copy_explain(struct pm_error *err);

#endif
