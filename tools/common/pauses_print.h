// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints how long the threads of a process have stood still for its commits (PMALLOC_COMMIT).
#ifndef PM_TOOLS_PAUSES_PRINT_H
#define PM_TOOLS_PAUSES_PRINT_H

#include "json.h"
#include "media/journal/pauses.h"

// "threads stood still 120 times, half of them for at most 0.05 ms, ..."; and pages by rounds after
// `before`, if there were any.
void pauses_text(const struct pm_pauses *pauses, const char *before);
// An object `pauses`.
void pauses_json(struct json *j, const struct pm_pauses *pauses);

#endif
