// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "dropped.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "media/backing/file.h"
#include "media/heap.h"
#include "root_media.h"
#include "root_table.h"
#include "spec.h"

static const struct pm_root *find(const struct pm_root_table *t, const char *name) {
    char text[PM_SPEC_TEXT_LEN];
    for (uint32_t i = 0; i < t->count; i++) {
        pm_root_text(&t->root[i], text, sizeof text);
        if (strcmp(text, name) == 0)
            return &t->root[i];
    }
    return NULL;
}

// A root that was dropped before may have the same name.
static void new_name(const struct pm_root_table *t, const struct pm_root *root, char *kept,
                     size_t size) {
    struct pm_root named = *root;
    char digits[12] = "";
    for (unsigned number = 2;; number++) {
        snprintf(named.object, sizeof named.object, "%s%s%s%.70s", PM_ROOT_DROPPED, digits,
                 *root->object ? "-" : "", root->object);
        pm_root_text(&named, kept, size);
        if (!find(t, kept))
            return;
        snprintf(digits, sizeof digits, "%u", number);
    }
}

int pm_dropped_set_aside(const char *name, char *kept, size_t size, struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    const struct pm_root *root = t ? find(t, name) : NULL;
    if (!t)
        return err->status;
    snprintf(kept, size, "%s", name); // if there is none, pm_roots_rename() says so
    if (root)
        new_name(t, root, kept, size);
    return pm_roots_rename(name, kept, err);
}
