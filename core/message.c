// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *pm_message_prefix = "pmalloc";

// glibc's vsnprintf allocates only for wide characters and huge widths, neither of which we use.
__attribute__((format(printf, 1, 0))) static void say(const char *format, va_list args) {
    int saved = errno;
    char line[1024];
    int head = snprintf(line, sizeof line, "%s: ", pm_message_prefix);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, args);
    size_t len = (size_t)head + (body < 0 ? 0 : (size_t)body);
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    line[len++] = '\n';
    while (write(STDERR_FILENO, line, len) < 0 && errno == EINTR) {
    } // of other failures there is nowhere left to say it
    errno = saved;
}

void pm_say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

void pm_abort(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    abort();
}

void pm_refuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    _exit(PM_EXIT_START);
}

int pm_fail(struct pm_error *err, enum pm_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    err->status = (int)status;
    return (int)status;
}
