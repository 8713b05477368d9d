// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the last recovery of a heap took and freed, on record for people.
#ifndef PM_RECOVERED_H
#define PM_RECOVERED_H

#include <stdbool.h>

#include "media/format.h"
#include "media/recovered_format.h"

// A heap that was not closed was recovered just now, and is open for writing. Adds the time and the
// count. It is a hint, so nothing is flushed.
void pm_recovered_keep(struct pm_recovered recovered);
// False: there was none, or the record is damaged.
bool pm_recovered_read(const struct pm_state *state, struct pm_recovered *out);

#endif
