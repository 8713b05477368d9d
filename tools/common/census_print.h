// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a census found, by size: in a report for a person, and for a program.
#ifndef PM_TOOLS_CENSUS_PRINT_H
#define PM_TOOLS_CENSUS_PRINT_H

#include "census.h"
#include "json.h"

void census_classes_json(struct json *j, const struct census *found);
void census_classes_text(const struct census *found);

#endif
