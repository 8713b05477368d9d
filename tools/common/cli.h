// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Command lines. Each tool has one table; the parser, --help and the manual page come from it.
#ifndef PM_TOOLS_CLI_H
#define PM_TOOLS_CLI_H

#include "cli_table.h"

// Called for each option. If its value is wrong, it calls cli_wrong(), which ends the program.
typedef void cli_take(int key, const char *value, void *arg);

// Reads the options, and handles --help, --man and --version itself. Returns the index of the first
// operand. Long names must be given in full. If the command line is wrong, it prints one line and
// ends the program.
int cli_parse(const struct cli_tool *tool, int argc, char **argv, cli_take *take, void *arg);

// Prints one line on standard error and exits with the tool's status for wrong command lines.
__attribute__((noreturn, format(printf, 2, 3))) void cli_wrong(const struct cli_tool *tool,
                                                               const char *format, ...);
// Reads a decimal number from `low` to `high`. Anything else ends the program by cli_wrong().
unsigned long cli_number(const struct cli_tool *tool, const char *what, const char *value,
                         unsigned long low, unsigned long high);

// Of the project, as "1.2.3".
const char *cli_version(void);

// Flushes standard output. Returns `status`; or, if not everything could be written, prints why and
// returns `failed`.
int cli_flush(int status, int failed);

#endif
