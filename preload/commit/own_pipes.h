// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the process has told itself: by a pipe or a counter (eventfd) of which it has both ends, and
// which it has not read yet. Many servers hand their main loop work so, dnsmasq its own set-up.
#ifndef PM_OWN_PIPES_H
#define PM_OWN_PIPES_H

#include <stdbool.h>

// Whether there is such a message. Where /proc is not seen, none is known of.
bool pm_own_pipes_have_news(void);

#endif
