// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// For a program whose instants are checked (instants.c, storm.c): lines that instants.py reads, and
// memory and commits without which it cannot go on.
#ifndef TEST_VM_INSTANT_LINES_H
#define TEST_VM_INSTANT_LINES_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, EXIT_WRONG = 3 };

int pmalloc_commit(void) __attribute__((weak));

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    char line[256];
    va_list args;
    va_start(args, format);
    size_t length = (size_t)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (write(STDOUT_FILENO, line, length) < 0)
        _exit(1);
}

static void *must(void *p) {
    if (!p) {
        say("wrong: out of memory\n");
        _exit(EXIT_WRONG);
    }
    return p;
}

// False: a thread did not stop in time, as on a machine that is overloaded.
static bool commit(void) {
    if (pmalloc_commit() == 0)
        return true;
    if (errno == EAGAIN) {
        say("again\n");
        return false;
    }
    say("wrong: a commit has failed: %s\n", strerror(errno));
    _exit(EXIT_WRONG);
}

#endif
