// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Command lines: one table a tool, from which the parser, --help and the man page come.
#ifndef PM_TOOLS_CLI_H
#define PM_TOOLS_CLI_H

#include <stdbool.h>

struct cli_option {
    int key;              // the short letter, or a number above 255 where there is none
    const char *name;     // the long name
    const char *argument; // NULL: takes none; in brackets: optional, as --name=value only
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
    const char *const *synopsis;    // what may follow the name
    const char *const *description; // paragraphs
    const struct cli_option *options;
    const struct cli_status *statuses;
    const struct cli_example *examples;
    const char *see_also;
    int usage_status;      // exit status of a wrong command line
    bool lists_settings;   // --help and the man page have the PMALLOC_ settings too
    bool stops_at_operand; // what follows the first operand is somebody else's
};

// Takes one option. A value that is no good ends the program by cli_wrong().
typedef void cli_take(int key, const char *value, void *arg);

// Parses the options, serves --help, --man and --version itself, and returns the index of the first operand.
// Long names must be given in full. Ends the program with one line where the line is wrong.
int cli_parse(const struct cli_tool *tool, int argc, char **argv, cli_take *take, void *arg);

// One line on standard error, then exit with the tool's usage status.
__attribute__((noreturn, format(printf, 2, 3))) void cli_wrong(const struct cli_tool *tool,
                                                               const char *format, ...);
// A decimal number of low .. high; anything else is wrong.
unsigned long cli_number(const struct cli_tool *tool, const char *what, const char *value,
                         unsigned long low, unsigned long high);

// Makes sure that standard output took everything: `status`, or `failed` after saying why not.
int cli_flush(int status, int failed);

// The options that every tool has.
extern const struct cli_option cli_standard[];

#endif
