// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// One-line messages to standard error, safe inside malloc: no stdio, no allocation, errno kept.
#ifndef PM_MESSAGE_H
#define PM_MESSAGE_H

#include <stdarg.h>
#include <stddef.h>

#define PM_EXIT_START 125 // exit status when the library refuses to start a program

// A reason, handed up by the functions that can fail for reasons worth telling. Owned by the caller.
struct pm_error {
    int status; // enum pm_status
    char text[512];
};

// Exit statuses of pmalloc-recover; inside a process only "is it zero" matters.
enum pm_status {
    PM_OK = 0,
    PM_NEEDS_RECOVERY = 1,
    PM_DAMAGE = 4,
    PM_OPERATIONAL = 8,
    PM_USAGE = 16
};

extern const char *pm_message_prefix; // "pmalloc" in a process, the tool's name in a tool

__attribute__((format(printf, 1, 2))) void pm_say(const char *format, ...);
// Says it and aborts, after restoring the default action of SIGABRT as abort(3) does.
__attribute__((noreturn, format(printf, 1, 2))) void pm_abort(const char *format, ...);
// Says it and leaves with PM_EXIT_START; no exit handler runs.
__attribute__((noreturn, format(printf, 1, 2))) void pm_refuse(const char *format, ...);
// Fills `err` and returns `status`, so that callers can write: return pm_fail(err, PM_DAMAGE, ...).
__attribute__((format(printf, 3, 4))) int pm_fail(struct pm_error *err, enum pm_status status,
                                                  const char *format, ...);

#endif
