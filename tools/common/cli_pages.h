// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What --help, --man and --man-env print, on standard output.
#ifndef PM_TOOLS_CLI_PAGES_H
#define PM_TOOLS_CLI_PAGES_H

#include "cli.h"

void cli_help(const struct cli_tool *tool);
void cli_man(const struct cli_tool *tool);
// libpmalloc(7): the library and its settings.
void cli_man_settings(void);

#endif
