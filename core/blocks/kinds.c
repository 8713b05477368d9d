// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "kinds.h"

uint16_t pm_kinds_first_arena = UINT16_MAX;
