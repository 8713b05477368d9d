// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a recovery has found that its program should be asked about.
#ifndef PM_TOOLS_REMARKS_H
#define PM_TOOLS_REMARKS_H

#include "json.h"
#include "recovery/recover.h"

void remarks_text(const struct pm_recovery *found);
void remarks_json(struct json *j, const struct pm_recovery *found);

#endif
