// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "nameless.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "media/heap.h"

static char in[64], text[600];

void pm_nameless_begin(const char *where, const char *what) {
    snprintf(in, sizeof in, "%s", where);
    snprintf(text, sizeof text, "%s (unnamed)", what);
    pm_nameless_describe();
}

void pm_nameless_describe(void) { strcpy(pm_heap.dir, text); }

int pm_nameless_fd(void) { return open(in, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); }
