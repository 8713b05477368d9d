// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "open_in_use.h"

#include <time.h>

#include "media/open/heap_open.h"

enum { TRIES = 50, TRY_NS = 2000000 };

int open_in_use(const char *heap, struct pm_error *err) {
    const struct timespec pause = {.tv_nsec = TRY_NS};
    int status = PM_OK;
    for (int i = 0; i < TRIES; i++) {
        status = pm_heap_open(heap, PM_OPEN_LOOK, false, err);
        if (status == PM_OK || err->why == PM_WHY_FOREIGN)
            break;
        nanosleep(&pause, NULL);
    }
    return status;
}
