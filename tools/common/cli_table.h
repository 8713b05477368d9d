// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The table that describes a tool: its options, exit statuses and texts.
#ifndef PM_TOOLS_CLI_TABLE_H
#define PM_TOOLS_CLI_TABLE_H

#include <stdbool.h>

struct cli_option {
    int key;              // the short letter, or a number above 255 if it has none
    const char *name;     // the long name
    const char *argument; // NULL: it takes none; in brackets: optional, only as --name=value
    const char *help;
};

struct cli_status {
    int status;
    const char *meaning;
};

struct cli_example {
    const char *command, *what;
};

// Every list ends with an entry of zeroes.
struct cli_tool {
    const char *name, *summary;
    const char *const *synopsis;    // the forms of the command line, without the tool's name
    const char *const *description; // paragraphs
    const struct cli_option *options;
    const struct cli_status *statuses;
    const struct cli_example *examples;
    const char *see_also;
    int usage_status;      // exit status of a wrong command line
    bool lists_settings;   // --help and the manual page list the PMALLOC_ settings too
    bool stops_at_operand; // words after the first operand belong to another program
};

enum { CLI_KEY_HELP = 1000, CLI_KEY_MAN, CLI_KEY_VERSION };

// The options that every tool has.
extern const struct cli_option cli_standard[];

#endif
