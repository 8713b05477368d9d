// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "confirm.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/message.h"

// Only a whole word is an answer: a stray key must not lose data.
static bool answered_yes(void) {
    char *line = NULL;
    size_t size = 0;
    ssize_t length = getline(&line, &size, stdin);
    bool good = length > 0 && (strcmp(line, "yes\n") == 0 || strcmp(line, "y\n") == 0);
    free(line);
    return good;
}

bool confirm(bool yes, const char *format, ...) {
    char text[900];
    va_list args;
    if (yes)
        return true;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        pm_say("%s; nothing was changed: give --yes to do it", text);
        return false;
    }
    pm_say("%s", text);
    fprintf(stderr, "Go on? [yes/no] ");
    if (answered_yes())
        return true;
    pm_say("nothing was changed");
    return false;
}
