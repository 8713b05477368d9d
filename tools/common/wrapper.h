// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Programs that only start another one: timeout, nice, strace and their like. The heap is not
// theirs, but that program's.
#ifndef PM_TOOLS_WRAPPER_H
#define PM_TOOLS_WRAPPER_H

enum wrapper_kind {
    WRAPPER_NONE,
    WRAPPER_STARTS, // it starts the program that was found
    WRAPPER_CLEARS, // it also clears the environment, and so the settings, for that program
};

// Reads the command line of a wrapper, beginning with its own name. *program is the word that names
// the program it starts.
enum wrapper_kind wrapper_find(char *const *argv, const char **program);

#endif
