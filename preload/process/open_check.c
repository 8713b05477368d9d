// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "open_check.h"

#include <errno.h>

#include "in_child.h"
#include "media/heap.h"
#include "recovery/recover.h"
#include "roots/root_table.h"

// All that an opening reads before it changes anything.
static int check(void *unused, struct pm_error *err) {
    struct pm_recovery ignored;
    struct pm_recover_options how = {.check = true, .mark = {.markers = 1}};
    (void)unused;
    return pm_recover(&how, &ignored, err);
}

// Variables get what the last run left in them before main alone.
static int has_no_captured_roots(struct pm_error *err) {
    const struct pm_root_table *table = pm_roots_table(err);
    if (!table)
        return err->status;
    if (!table->count)
        return PM_OK;
    errno = ENOTSUP;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s has captured roots, which a program gets back before main alone; name it in "
                   "PMALLOC_HEAP",
                   pm_heap.dir);
}

int pm_open_check(struct pm_error *err) {
    int status = pm_heap.created ? PM_OK : pm_in_child(check, NULL, 0, err);
    return status == PM_OK ? has_no_captured_roots(err) : status;
}
