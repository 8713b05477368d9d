// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "rooted.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "media/backing/volume.h"
#include "media/heap.h"
#include "media/open/heap_open.h"

bool rooted_is_not(const char *heap) {
    char first[PATH_MAX];
    struct pm_error ignored;
    snprintf(first, sizeof first, "%.*s", (int)pm_volume_first(heap), heap);
    if (access(first, F_OK) != 0)
        return errno == ENOENT;
    if (pm_heap_open(heap, PM_OPEN_LOOK, false, &ignored) != PM_OK)
        return false;
    bool none = !pm_heap_has_roots() || pm_heap_roots_are_dropped();
    pm_heap_release();
    return none;
}
