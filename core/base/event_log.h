// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_LOG: where the library's lines go. While it is not set, nothing here is called.
//
// A line is one write(2) to a descriptor of a high number that is opened at the start. Where the
// program has closed that, a child opens what it led to (bare_child.h), so no number of the
// program's is taken for a moment either. What cannot be written goes to standard error.
//
// Lines of one identifier are limited: PM_EVENT_MOST in a minute. Another one says that no more
// come; the first line after that minute, or the end of the program, how many were left out. What
// is critical, and what was asked for (PM_LEVEL_REPORT), is never left out.
#ifndef PM_EVENT_LOG_H
#define PM_EVENT_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "message.h"
#include "options.h"

#define PM_EVENT_MOST 20u

// The directory of the heap, or "": of the process, where it is known.
extern const char *pm_event_heap_dir;
const char *pm_event_heap(void);

// Whether the settings send lines through here. A start and an end ask this, and touch no page for
// it that they would not touch without.
static inline bool pm_event_log_wanted(void) {
    const struct pm_options *o = &pm_options;
    return (o->log.text && *o->log.text) || o->log_format.number != PM_LOG_TEXT;
}

// Once, after the settings were read. Where it cannot be opened, lines go to standard error.
// `descends`: the settings are those of the process that has started this one, so that is not said,
// and fd:N is not used, which may be anything here. PM_USAGE: the setting is wrong.
int pm_event_log_begin(bool descends, struct pm_error *err);
// Says that it could not be opened; once the program will not be executed again, which would say it
// a second time (preload/process/addresses.h).
void pm_event_log_say_failure(void);
// At the end of the program: how many lines were left out.
void pm_event_log_end(void);
// From here on the calls that it takes are forbidden.
void pm_event_log_forbid(void);

// Calls `fn` for its descriptor, if there is one that is still ours. And whether there was one.
void pm_event_log_fd(void (*fn)(int fd, void *arg), void *arg);
bool pm_event_log_has_fd(void);

#endif
