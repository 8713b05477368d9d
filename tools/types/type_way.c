// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "type_way.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 64 };

void type_visit_add(struct type_visits *v, const struct type_visit *visit) {
    if (!(v->count & (v->count - 1))) {
        struct type_visit *more =
            realloc(v->visit, (v->count ? 2 * (size_t)v->count : 1) * sizeof *more);
        v->failed |= !more;
        v->visit = more ? more : v->visit;
    }
    if (!v->failed)
        v->visit[v->count++] = *visit;
}

struct way {
    char *out;
    size_t size;
    unsigned pointers; // that nothing has been selected behind yet
};

static void append(struct way *w, const char *before, const char *text, const char *after) {
    size_t used = strlen(w->out);
    snprintf(w->out + used, w->size - used, "%s%s%s", before, text, after);
    w->pointers = 0;
}

static void add_member(struct way *w, const struct type_table *t, const struct pm_types_member *m) {
    const char *name = type_text(t, m->name);
    char type[100];
    type_name(t, m->type, type, sizeof type);
    unsigned pointers = w->pointers;
    switch (m->is) {
    case PM_TYPES_MEMBER:
        if (*name) // the members of one without a name are written as if there were none
            append(w, pointers ? "->" : ".", name, "");
        break;
    case PM_TYPES_ARGUMENT:
        append(w, "<", type, ">");
        break;
    case PM_TYPES_DERIVED:
        append(w, "{", type, "}");
        w->pointers = pointers;
        break;
    default: // a base class needs no name, and the table of virtual functions has none
        break;
    }
}

const char *type_way(const struct type_table *t, const struct type_visits *v, uint32_t at,
                     char *out, size_t size) {
    uint32_t steps[STEPS_MAX];
    unsigned count = 0;
    struct way w = {out, size, 0};
    *out = '\0';
    for (; count < STEPS_MAX; at = v->visit[at].from) {
        steps[count++] = at;
        if (v->visit[at].step == TYPE_STEP_ROOT)
            break;
    }
    if (v->visit[steps[count - 1]].step != TYPE_STEP_ROOT)
        append(&w, "...", "", "");
    while (count-- > 0) {
        const struct type_visit *visit = &v->visit[steps[count]];
        const struct pm_types_root *root = &t->root[visit->number];
        if (visit->step == TYPE_STEP_ROOT)
            append(&w, "", type_text(t, root->variable ? root->variable : root->text), "");
        else if (visit->step == TYPE_STEP_POINTER)
            w.pointers++;
        else if (visit->step == TYPE_STEP_ELEMENT)
            append(&w, "[]", "", "");
        else
            add_member(&w, t, &t->member[visit->number]);
    }
    size_t used = strlen(out);
    for (; w.pointers && used + 2 < size; w.pointers--, used++) {
        memmove(out + 1, out, used + 1);
        *out = '*';
    }
    return out;
}
