// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// An event as a line for whoever reads it. No locale, no time zone, no allocation.
#ifndef PM_EVENT_TEXT_H
#define PM_EVENT_TEXT_H

#include <stddef.h>

#include "events.h"

enum pm_event_form {
    PM_EVENT_TEXT,        // time, process, identifier, message
    PM_EVENT_JSON,        // an object
    PM_EVENT_SYSLOG,      // a datagram of syslog(3), which gives it the time
    PM_EVENT_SYSLOG_JSON, // the same, its message an object
    PM_EVENT_JOURNAL,     // the fields of a datagram of systemd's journal
};

// What is said, and of which heap: "" where there is none. The message is one line of 1000 bytes at
// most, without control characters.
struct pm_event_said {
    enum pm_event event;
    const char *message, *heap;
};

#define PM_EVENT_LINE 2560u // what a line may take; what is beyond it is cut

// Returns its length. A line that goes to a file has its end.
size_t pm_event_write(enum pm_event_form form, const struct pm_event_said *said,
                      char line[PM_EVENT_LINE]);

#endif
