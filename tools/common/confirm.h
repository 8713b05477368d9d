// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Steps that lose data, and cannot be taken back.
#ifndef PM_TOOLS_CONFIRM_H
#define PM_TOOLS_CONFIRM_H

#include <stdbool.h>

// Whether to go on with a step. The text says what it loses, and how that could be kept. With
// `yes` (the option --yes) the user has said so already. A user at a terminal is asked. Anyone else
// is told that --yes is missing, and nothing is done.
__attribute__((format(printf, 2, 3))) bool confirm(bool yes, const char *format, ...);

#endif
