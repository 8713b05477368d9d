// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The service manager's end of sd_notify(3): a datagram socket that NOTIFY_SOCKET names.
#ifndef PM_TOOLS_MANAGER_H
#define PM_TOOLS_MANAGER_H

#include <stdint.h>

#include "base/message.h"

struct manager {
    int socket;           // -1: nobody asks
    uint64_t watchdog_us; // within this time it wants to hear again; 0: it does not
};

// Reads the environment, and removes from it what is the manager's.
int manager_find(struct manager *m, struct pm_error *err);
// Sends a message. One that the manager does not take is lost: it has other ways to see an end.
__attribute__((format(printf, 2, 3))) void manager_tell(const struct manager *m, const char *format,
                                                        ...);

#endif
