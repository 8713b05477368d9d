// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "cli_table.h"

#include <stddef.h>

const struct cli_option cli_standard[] = {
    {CLI_KEY_HELP, "help", NULL, "Print this text and exit."},
    {CLI_KEY_MAN, "man", NULL, "Print the manual page, in roff, and exit."},
    {CLI_KEY_VERSION, "version", NULL, "Print the version and exit."},
    {0},
};
