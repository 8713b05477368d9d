// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "info_print.h"
#include "media/heap.h"
#include "member_name.h"
#include "program_types.h"
#include "root_path.h"
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

static int open_program(struct tree *t, struct program_types *p, const char *heap,
                        struct pm_error *err) {
    int status = program_types_open(p, heap, err);
    t->program = p->program;
    t->types = p->types;
    t->base = p->base;
    return status;
}

// What is to be printed: a value; or, if there is no type, the members that lie in those bytes of a
// variable.
struct shown {
    uint64_t at, length, type;
    uint64_t variable, offset; // the type of that variable, and where in it
    char name[DWARF_NAME];
};

// No root, but perhaps a part of one.
static int find_part(struct program_types *p, const struct tree_request *q, struct shown *out,
                     struct pm_error *err) {
    struct root_place place = {0};
    struct pm_spec spec;
    bool path = strpbrk(q->root, ".[") || strstr(q->root, "->");
    int status = root_path_read(p, q->root, strlen(q->root), &spec, &place, err);
    if (status != PM_OK && path)
        return status;
    if (!place.size)
        return pm_fail(err, PM_USAGE, "%s has no root named '%.200s'; `pmalloc-info %s` lists them",
                       q->heap, q->root, q->heap);
    out->at = place.address + p->base;
    out->length = place.size;
    bool row = place.size != dw_size(p->types, place.type);
    out->type = row ? 0 : place.type;
    struct dwarf_entry variable;
    if (row && dw_variable_around(p->types, place.address, &variable)) {
        out->variable = variable.type;
        out->offset = place.address - variable.address;
        dw_full_name(p->types, &variable, out->name, sizeof out->name);
    }
    return PM_OK;
}

static int find_type(struct program_types *p, const struct tree_request *q,
                     const struct pm_root *root, struct shown *out, struct pm_error *err) {
    char path[MEMBER_NAME] = "";
    struct member m;
    out->at = root->address;
    out->length = root->length;
    if (!program_variable(p, root, 0, out->name, sizeof out->name, &out->variable, &out->offset))
        return pm_fail(err, PM_OPERATIONAL,
                       "the type of '%.200s' is not known: is its file built with -g?", q->root);
    uint64_t size = dw_size(p->types, out->variable);
    if (out->offset == 0 && size <= root->length)
        out->type = out->variable;
    else if (member_begins(p->types, out->variable, out->offset, root->length, path, &m) &&
             m.size == root->length && m.size == dw_size(p->types, m.type))
        out->type = m.type;
    else if (!member_range(p->types, out->variable, "", out->offset, root->length, path))
        return pm_fail(err, PM_OPERATIONAL,
                       "'%.200s' is no member of %.200s, nor several, so it has no type", q->root,
                       out->name);
    return PM_OK;
}

static int find_root(struct tree *t, struct program_types *p, const struct tree_request *q,
                     struct shown *out, struct pm_error *err) {
    char name[PM_SPEC_TEXT_LEN];
    struct sought s = {.name = name};
    struct pm_error why;
    if (root_path_in_heap(q->heap, q->root, name, &why) == PM_OK)
        pm_roots_list(compare, &s);
    if (!s.found)
        return find_part(p, q, out, err);
    t->dropped = pm_root_is_dropped(&s.root);
    snprintf(t->object, sizeof t->object, "%s", s.root.object);
    if (s.root.kind == PM_ROOT_OBJECT || (*t->object && !t->dropped))
        return pm_fail(err, PM_OPERATIONAL,
                       "'%.200s' is no variable of the program, so it has no "
                       "type",
                       q->root);
    if (t->dropped)
        s.root.object[0] = '\0';
    return find_type(p, q, &s.root, out, err);
}

static void print_members(struct tree *t, const struct tree_request *q, const struct shown *v,
                          const char *bytes) {
    unsigned count = 0;
    tree_open(t, q->root, '{');
    for (uint64_t at = 0; at < v->length;) {
        char path[MEMBER_NAME] = "", key[2 * DWARF_NAME];
        struct member m;
        uint64_t rest = v->length - at;
        bool found = member_begins(t->types, v->variable, v->offset + at, rest, path, &m);
        if (found && m.size != dw_size(t->types, m.type)) { // a row of an array
            *path = '\0';
            found = member_begins(t->types, v->variable, v->offset + at, dw_size(t->types, m.type),
                                  path, &m);
        }
        if (found && count++ == q->width) {
            tree_word(t, "...", false, "more");
            break;
        }
        snprintf(key, sizeof key, "%s%s", v->name, path);
        if (found)
            tree_value(t, key, m.type, v->at + at, bytes + at, q->depth, q->width);
        at += found ? m.size : 1;
    }
    tree_close(t, '}');
}

int tree_print(const struct tree_request *q) {
    static struct tree t;
    struct pm_error err;
    static struct program_types p;
    struct shown v = {0};
    t = (struct tree){.width = q->width, .as_json = q->json, .json = {.out = stdout}};
    t.table = pm_roots_table(&err);
    t.images = t.table ? pm_roots_images(t.table) : NULL;
    t.seen = calloc(TREE_PLACES, sizeof *t.seen);
    int status = !t.table  ? err.status
                 : !t.seen ? pm_fail(&err, PM_OPERATIONAL, "no memory")
                           : open_program(&t, &p, q->heap, &err);
    if (status == PM_OK)
        status = find_root(&t, &p, q, &v, &err);
    uint64_t length = v.type ? dw_size(t.types, v.type) : v.length;
    const void *bytes = status == PM_OK ? tree_bytes(&t, v.at, length) : NULL;
    if (status == PM_OK && !bytes)
        status = pm_fail(&err, PM_OPERATIONAL,
                         "'%.200s' is in no root of %s; `pmalloc-info %s` lists them", q->root,
                         q->heap, q->heap);
    if (status != PM_OK) {
        pm_say("%s", err.text);
        if (q->json)
            info_error(q->heap, &err);
        return status;
    }
    if (q->json)
        json_open(&t.json, NULL, '{');
    if (v.type)
        tree_value(&t, q->root, v.type, v.at, bytes, q->depth, q->width);
    else
        print_members(&t, q, &v, bytes);
    if (q->json) {
        json_close(&t.json, '}');
        json_end(&t.json);
    }
    return PM_OK;
}
