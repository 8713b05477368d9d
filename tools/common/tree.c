// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "info_print.h"
#include "media/heap.h"
#include "program_types.h"
#include "roots/root_media.h"
#include "tree_value.h"

struct sought {
    const char *name;
    struct pm_root root;
    bool found;
};

static void compare(const struct pm_root *root, const char *name, void *arg) {
    struct sought *s = arg;
    if (strcmp(name, s->name) == 0) {
        s->root = *root;
        s->found = true;
    }
}

static int open_program(struct tree *t, const char *heap, struct pm_error *err) {
    static struct program_types p;
    int status = program_types_open(&p, heap, err);
    t->program = p.program;
    t->types = p.types;
    t->base = p.base;
    return status;
}

static int find_root(struct tree *t, const struct tree_request *q, uint64_t *type, uint64_t *at,
                     struct pm_error *err) {
    struct sought s = {.name = q->root};
    struct dwarf_entry variable;
    pm_roots_list(compare, &s);
    if (!s.found)
        return pm_fail(err, PM_USAGE, "%s has no root named '%.200s'; `pmalloc-info %s` lists them",
                       q->heap, q->root, q->heap);
    t->dropped = pm_root_is_dropped(&s.root);
    snprintf(t->object, sizeof t->object, "%s", s.root.object);
    if (s.root.kind == PM_ROOT_OBJECT || (*t->object && !t->dropped))
        return pm_fail(err, PM_OPERATIONAL,
                       "'%.200s' is no variable of the program, so it has no "
                       "type",
                       q->root);
    *at = s.root.address;
    if (!dw_variable(t->types, s.root.address - t->base, &variable))
        return pm_fail(err, PM_OPERATIONAL,
                       "the type of '%.200s' is not known: is its file built "
                       "with -g?",
                       q->root);
    *type = variable.type;
    if (dw_size(t->types, *type) > s.root.length)
        return pm_fail(err, PM_OPERATIONAL, "the variable at '%.200s' is longer than the root",
                       q->root);
    return PM_OK;
}

int tree_print(const struct tree_request *q) {
    static struct tree t;
    struct pm_error err;
    uint64_t type = 0, at = 0;
    t = (struct tree){.width = q->width, .as_json = q->json, .json = {.out = stdout}};
    t.table = pm_roots_table(&err);
    t.images = t.table ? pm_roots_images(t.table) : NULL;
    t.seen = calloc(TREE_PLACES, sizeof *t.seen);
    int status = !t.table  ? err.status
                 : !t.seen ? pm_fail(&err, PM_OPERATIONAL, "no memory")
                           : open_program(&t, q->heap, &err);
    if (status == PM_OK)
        status = find_root(&t, q, &type, &at, &err);
    const void *bytes = status == PM_OK ? tree_bytes(&t, at, dw_size(t.types, type)) : NULL;
    if (status == PM_OK && !bytes)
        status = pm_fail(&err, PM_OPERATIONAL, "the bytes of '%.200s' cannot be read", q->root);
    if (status != PM_OK) {
        pm_say("%s", err.text);
        if (q->json)
            info_error(q->heap, &err);
        return status;
    }
    if (q->json)
        json_open(&t.json, NULL, '{');
    tree_value(&t, q->root, type, at, bytes, q->depth, q->width);
    if (q->json) {
        json_close(&t.json, '}');
        json_end(&t.json);
    }
    return PM_OK;
}
