// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// One-line messages, safe inside malloc: no stdio, no allocation, errno kept. Control characters
// are printed as '?'. What the library says is an event (events.h); it goes to standard error, or
// where PMALLOC_LOG says (event_log.h). What a tool says goes to standard error.
#ifndef PM_MESSAGE_H
#define PM_MESSAGE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "events.h"

#define PM_EXIT_START 125 // exit status when the library refuses to start a program

// Why a function failed, as far as a caller can do something about it.
enum pm_why {
    PM_WHY_TEXT,    // only the text says it
    PM_WHY_BUSY,    // another process has the lock of the heap
    PM_WHY_LENT,    // other processes have, and none of them changes the heap
    PM_WHY_FOREIGN, // another build has made the heap
};
// Of a busy heap, as far as it is known; else zero.
struct pm_holder {
    pid_t pid;      // the owner that the state page names
    uint64_t start; // when that process started
    pid_t other;    // if that is not it: a process that has the heap open
    bool mapped;    // the lock is of a file that is mapped (heap_patient.c)
};
// Of a function that failed. The caller owns it; the function that fails fills it.
struct pm_error {
    int status; // enum pm_status
    enum pm_why why;
    struct pm_holder holder;
    char text[512];
};
static inline bool pm_is_busy(const struct pm_error *err) {
    return err->why == PM_WHY_BUSY || err->why == PM_WHY_LENT;
}

// Results of functions that fill a pm_error, and exit statuses of the tools.
enum pm_status {
    PM_OK = 0,
    PM_NEEDS_RECOVERY = 1,
    PM_DAMAGE = 4,
    PM_OPERATIONAL = 8,
    PM_USAGE = 16
};

extern const char *pm_message_prefix; // "pmalloc" in a process, the tool's name in a tool

// Where events go instead of standard error; false: there, too. And what else is done with them.
// NULL: nothing. The message is without the prefix and without the end of the line.
extern bool (*pm_event_taken)(enum pm_event event, const char *message);
extern void (*pm_event_followed)(enum pm_event event, const char *message);

__attribute__((format(printf, 2, 3))) void pm_event(enum pm_event event, const char *format, ...);
// Says it and calls abort(3).
__attribute__((noreturn, format(printf, 2, 3))) void pm_abort(enum pm_event event,
                                                              const char *format, ...);
// Says it and ends the process with PM_EXIT_START. No exit handler runs.
__attribute__((noreturn, format(printf, 2, 3))) void pm_refuse(enum pm_event event,
                                                               const char *format, ...);
// Which event it is that a start is refused for this.
enum pm_event pm_event_of(const struct pm_error *err);
// For tools.
__attribute__((format(printf, 1, 2))) void pm_say(const char *format, ...);
// Fills `err` and returns `status`, so that callers can write: return pm_fail(err, PM_DAMAGE, ...).
__attribute__((format(printf, 3, 4))) int pm_fail(struct pm_error *err, enum pm_status status,
                                                  const char *format, ...);
// The same of an error that says why: another text, for the same reason.
__attribute__((format(printf, 2, 3))) int pm_fail_anew(struct pm_error *err, const char *format,
                                                       ...);
// Adds where it failed: puts "PLACE: " before the reason in `err`. PLACE is made from `format` and
// what follows it. Returns err->status.
__attribute__((format(printf, 2, 3))) int pm_fail_in(struct pm_error *err, const char *format, ...);
// What an errno value means. Unlike strerror(), which translates, this never allocates.
const char *pm_strerror(int error);

#endif
