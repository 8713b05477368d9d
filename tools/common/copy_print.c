// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "copy_print.h"

#include <string.h>

#include "media/heap.h"

void copy_explain(struct pm_error *err) {
    static const char why[] =
        "; this is a copy of a heap that was not clean: if the heap was in use "
        "meanwhile, use another copy, made by pmalloc-backup";
    if (pm_heap.copy && err->status == PM_DAMAGE)
        strncat(err->text, why, sizeof err->text - strlen(err->text) - 1);
}
