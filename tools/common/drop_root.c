// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "drop_root.h"

#include <stdio.h>
#include <string.h>

#include "confirm.h"
#include "figures.h"
#include "media/heap.h"
#include "roots/dropped.h"
#include "roots/root_table.h"

struct dropping {
    const char *name;
    bool found, dropped; // dropped: it was before
    unsigned others;     // roots that a program finds
};

static void compare_root(const struct pm_root *root, const char *text, void *arg) {
    struct dropping *d = arg;
    bool dropped = pm_root_is_dropped(root);
    if (strcmp(text, d->name) == 0) {
        d->found = true;
        d->dropped = dropped;
    } else {
        d->others += !dropped;
    }
}

static struct dropping look_at_drop(const char *name) {
    struct dropping d = {.name = name};
    pm_roots_list(compare_root, &d);
    d.others += pm_roots_slots_used();
    return d;
}

// A root that is dropped once stays under another name, so little is asked: without the last one no
// program finds anything. A root that is dropped twice is lost.
bool drop_root_may(const char *heap, const char *name, bool yes, const struct pm_recovery *found) {
    struct dropping d = look_at_drop(name);
    char count[32], size[32];
    if (!d.found || (d.others && !d.dropped))
        return true;
    if (d.dropped)
        return confirm(yes,
                       "'%.80s' is a root that was dropped, and what only it reaches is the data "
                       "that it had: without it that is lost, and cannot be had back. "
                       "`pmalloc-recover --rename-root '%.80s' NAME %.200s` lets a program find it "
                       "again",
                       name, name, heap);
    return confirm(yes,
                   "'%.80s' is the only root of %.200s: without it no program finds the data of "
                   "the heap, %s object%s of %s. The heap keeps them, and what gives them back is "
                   "printed; a variable that was renamed wants --rename-root",
                   name, heap, figure_count(found->live_objects, count),
                   found->live_objects == 1 ? "" : "s", figure_bytes(found->live_bytes, size));
}

int drop_root(const char *name, char *kept, size_t size, struct pm_error *err) {
    struct dropping d = look_at_drop(name);
    if (!d.found || d.dropped)
        return pm_roots_drop(name, err);
    return pm_dropped_set_aside(name, kept, size, err);
}

void drop_root_text(const char *heap, const char *name, const char *kept) {
    if (!*kept)
        return;
    printf("kept       what '%s' led to, by the root '%s'\n", name, kept);
    printf("to have it pmalloc-recover --rename-root '%s' '%s' %s\n", kept, name, heap);
    printf("to free it pmalloc-recover --drop-root '%s' --yes %s\n", kept, heap);
}
