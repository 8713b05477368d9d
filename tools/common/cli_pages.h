// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints, on standard output, what --help, --man and --man-env ask for.
#ifndef PM_TOOLS_CLI_PAGES_H
#define PM_TOOLS_CLI_PAGES_H

#include "cli_table.h"

void cli_help(const struct cli_tool *tool);
void cli_man(const struct cli_tool *tool);
// libpmalloc(7): the library and its settings.
void cli_man_settings(void);

#endif
