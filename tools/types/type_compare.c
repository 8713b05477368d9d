// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "type_compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "type_way.h"

enum { REASON = 300, MEMBERS_COMPARED = 4096 };

struct compare {
    const struct type_table *old, *new;
    struct type_visits visits;
    struct numbers seen;
    struct type_differences *out;
    uint32_t at; // the visit that is looked at
};

static void visit(struct compare *c, uint32_t old, uint32_t new, enum type_step step,
                  uint32_t number) {
    uint32_t *seen = numbers_put(&c->seen, ((uint64_t) new + 1) << 32 | old);
    struct type_visit v = {new, old, c->at, step, number};
    c->out->failed |= !seen;
    if (!seen || *seen)
        return;
    *seen = 1;
    type_visit_add(&c->visits, &v);
    c->out->failed |= c->visits.failed;
}

// ---- saying it ----------------------------------------------------------------------------------

static void differ(struct compare *c, uint64_t old_size, const char *text) {
    struct type_differences *out = c->out;
    for (unsigned i = 0; i < out->count && i < TYPE_DIFFERENCES; i++)
        if (strcmp(out->one[i].text, text) == 0)
            return;
    if (out->count < TYPE_DIFFERENCES) {
        snprintf(out->one[out->count].text, TYPE_DIFFERENCE_TEXT, "%s", text);
        out->one[out->count].old_size = old_size;
    }
    out->count++;
}

// What lies at the visit that is looked at is something else than it was.
static void differ_in_kind(struct compare *c, const struct type_visit *v) {
    char way[TYPE_PATH], is[80], was[80], text[TYPE_DIFFERENCE_TEXT];
    type_kind_text(c->new, v->type, is, sizeof is);
    type_kind_text(c->old, v->other, was, sizeof was);
    snprintf(text, sizeof text, "%s is %s, it was %s",
             type_way(c->new, &c->visits, c->at, way, sizeof way), is, was);
    differ(c, 0, text);
}

static void differ_in_struct(struct compare *c, const struct type_visit *v, const char *reason) {
    const struct pm_types_type *new = &c->new->type[v->type], *old = &c->old->type[v->other];
    char way[TYPE_PATH], name[200], text[TYPE_DIFFERENCE_TEXT], size[80] = "";
    type_name(c->new, v->type, name, sizeof name);
    type_way(c->new, &c->visits, c->at, way, sizeof way);
    if (new->size != old->size)
        snprintf(size, sizeof size, " has %lu bytes, it had %lu%s", (unsigned long)new->size,
                 (unsigned long)old->size, *reason ? ": " : "");
    snprintf(text, sizeof text, "%.200s%s%s, reached as %.190s", name, *size ? size : ": ", reason,
             way);
    differ(c, v->step == TYPE_STEP_POINTER && new->size != old->size ? old->size : 0, text);
}

// ---- structs ------------------------------------------------------------------------------------

static bool is_part(const struct pm_types_member *m) { return m->is < PM_TYPES_ARGUMENT; }

static const char *name_of(const struct type_table *t, const struct pm_types_member *m) {
    return type_text(t, m->is == PM_TYPES_MEMBER ? m->name : t->type[m->type].name);
}

// The part of the other struct that has the name of this one; or, for one without a name, and for
// a base class or table of virtual functions, that has its place.
static uint32_t same_part(const struct type_table *in, const struct pm_types_type *of,
                          const struct type_table *t, const struct pm_types_member *m) {
    const char *name = name_of(t, m);
    uint32_t end = of->first + of->members;
    for (uint32_t i = of->first; i < end && *name && m->is != PM_TYPES_VTABLE; i++)
        if (in->member[i].is == m->is && strcmp(name_of(in, &in->member[i]), name) == 0)
            return i;
    for (uint32_t i = of->first; i < end && (!*name || m->is != PM_TYPES_MEMBER); i++)
        if (in->member[i].is == m->is && in->member[i].at == m->at &&
            (m->is != PM_TYPES_MEMBER || !*name_of(in, &in->member[i])))
            return i;
    return UINT32_MAX;
}

// A part of the old struct that has the place of this one, and that the new one has no more: it was
// given another name.
static uint32_t renamed_part(const struct compare *c, const struct pm_types_type *old,
                             const struct pm_types_type *new, const struct pm_types_member *m) {
    for (uint32_t i = old->first; i < old->first + old->members; i++) {
        const struct pm_types_member *o = &c->old->member[i];
        if (o->is == m->is && o->at == m->at && o->bits == m->bits &&
            same_part(c->new, new, c->old, o) == UINT32_MAX)
            return i;
    }
    return UINT32_MAX;
}

static void part_text(const struct type_table *t, const struct pm_types_member *m, char *out,
                      size_t size) {
    const char *name = name_of(t, m);
    if (m->is == PM_TYPES_VTABLE)
        snprintf(out, size, "its table of virtual functions");
    else if (m->is == PM_TYPES_MEMBER)
        snprintf(out, size, "%s", *name ? name : "a part without a name");
    else
        snprintf(out, size, "its base class %s", name);
}

static void place_text(uint64_t bits, char *out, size_t size) {
    if (bits % 8)
        snprintf(out, size, "bit %lu", (unsigned long)bits);
    else
        snprintf(out, size, "byte %lu", (unsigned long)(bits / 8));
}

// What differs of one struct: the first reason is said, and that there are more.
struct reasons {
    char text[REASON];
    unsigned count;
};

static void add_reason(struct reasons *r, const char *part, const char *what) {
    if (r->count++ == 0)
        snprintf(r->text, sizeof r->text, "%.120s %s", part, what);
}

static void compare_places(const struct pm_types_member *old, const struct pm_types_member *new,
                           const char *part, struct reasons *r) {
    char is[32], was[32], what[100];
    place_text(new->at, is, sizeof is);
    place_text(old->at, was, sizeof was);
    if (new->at != old->at)
        snprintf(what, sizeof what, "lies at %s, it lay at %s", is, was);
    else
        snprintf(what, sizeof what, "has %u bits, it had %u", new->bits, old->bits);
    if (new->at != old->at || new->bits != old->bits)
        add_reason(r, part, what);
}

static void compare_parts(struct compare *c, const struct pm_types_type *old,
                          const struct pm_types_type *new, struct reasons *r) {
    char part[200];
    for (uint32_t i = new->first; i < new->first + new->members; i++) {
        const struct pm_types_member *m = &c->new->member[i];
        if (!is_part(m))
            continue;
        uint32_t o = same_part(c->old, old, c->new, m);
        o = o == UINT32_MAX ? renamed_part(c, old, new, m) : o;
        part_text(c->new, m, part, sizeof part);
        if (o == UINT32_MAX) {
            add_reason(r, part, "is new");
            continue;
        }
        compare_places(&c->old->member[o], m, part, r);
        if (m->is != PM_TYPES_VTABLE) // where it leads is the business of a rewriting
            visit(c, c->old->member[o].type, m->type, TYPE_STEP_MEMBER, i);
    }
    for (uint32_t i = old->first; i < old->first + old->members; i++) {
        const struct pm_types_member *o = &c->old->member[i];
        if (!is_part(o) || same_part(c->new, new, c->old, o) != UINT32_MAX)
            continue;
        bool renamed = false;
        for (uint32_t n = new->first; n < new->first + new->members && !renamed; n++)
            renamed = is_part(&c->new->member[n]) &&
                      same_part(c->old, old, c->new, &c->new->member[n]) == UINT32_MAX &&
                      renamed_part(c, old, new, &c->new->member[n]) == i;
        part_text(c->old, o, part, sizeof part);
        if (!renamed)
            add_reason(r, part, "is gone");
    }
}

// What is no part of it: by its place in the list of arguments, or by the name of the class.
static void visit_others(struct compare *c, const struct pm_types_type *old,
                         const struct pm_types_type *new) {
    uint32_t argument = old->first, end = old->first + old->members;
    for (uint32_t i = new->first; i < new->first + new->members; i++) {
        const struct pm_types_member *m = &c->new->member[i];
        uint32_t o = m->is == PM_TYPES_ARGUMENT ? argument : old->first;
        const char *name = name_of(c->new, m);
        if (is_part(m))
            continue;
        while (o < end && (c->old->member[o].is != m->is ||
                           (m->is == PM_TYPES_DERIVED &&
                            strcmp(name_of(c->old, &c->old->member[o]), name) != 0)))
            o++;
        if (m->is == PM_TYPES_ARGUMENT)
            argument = o < end ? o + 1 : end;
        if (o < end)
            visit(c, c->old->member[o].type, m->type, TYPE_STEP_MEMBER, i);
    }
}

static void compare_structs(struct compare *c, const struct type_visit *v) {
    const struct pm_types_type *new = &c->new->type[v->type], *old = &c->old->type[v->other];
    struct reasons r = {.count = 0};
    c->out->types++;
    // Beyond that the work would grow with the square.
    if (new->members <= MEMBERS_COMPARED && old->members <= MEMBERS_COMPARED)
        compare_parts(c, old, new, &r);
    else if (new->hash != old->hash)
        add_reason(&r, "one of its members", "is another one");
    if (r.count > 1)
        snprintf(r.text + strlen(r.text), sizeof r.text - strlen(r.text), ", and %u more",
                 r.count - 1);
    if (r.count || new->size != old->size)
        differ_in_struct(c, v, r.text);
    visit_others(c, old, new);
}

// ---- all of it ----------------------------------------------------------------------------------

// What is behind it is not known in one of the builds.
static bool is_unknown(const struct pm_types_type *t) {
    return t->kind == PM_TYPES_VOID || t->kind == PM_TYPES_INCOMPLETE ||
           t->kind == PM_TYPES_SEVERAL || t->kind == PM_TYPES_BEYOND;
}

static void compare_visit(struct compare *c, const struct type_visit *v) {
    const struct pm_types_type *new = &c->new->type[v->type], *old = &c->old->type[v->other];
    if (is_unknown(new) || is_unknown(old))
        return;
    bool sized = new->size && old->size;
    bool other = new->kind != old->kind;
    if (new->kind == PM_TYPES_ARRAY && !other)
        other = new->count != old->count;
    else if (new->kind != PM_TYPES_STRUCT)
        other |= sized && new->size != old->size;
    if (other)
        differ_in_kind(c, v);
    if (new->kind != old->kind)
        return;
    if (new->kind == PM_TYPES_STRUCT)
        compare_structs(c, v);
    else if (new->kind == PM_TYPES_POINTER)
        visit(c, old->to, new->to, TYPE_STEP_POINTER, 0);
    else if (new->kind == PM_TYPES_ARRAY)
        visit(c, old->to, new->to, TYPE_STEP_ELEMENT, 0);
}

// The root that is this member; NULL: there is none, or the name is that of the root.
static const struct pm_types_root *root_of_variable(const struct type_table *t, const char *name) {
    for (uint32_t i = 0; *name && i < t->head.roots; i++)
        if (strcmp(type_text(t, t->root[i].variable), name) == 0)
            return &t->root[i];
    return NULL;
}

// A root that is a member may lie elsewhere in the new build, where its name is the same.
static const struct pm_types_root *old_root(const struct type_table *old,
                                            const struct type_table *new,
                                            const struct pm_types_root *root) {
    const struct pm_types_root *found = root_of_variable(old, type_text(new, root->variable));
    if (!found)
        found = type_table_root(old, type_text(new, root->text));
    return found && found->is == PM_TYPES_ROOT_TYPED ? found : NULL;
}

// Whether the old root of this text is a member that lies elsewhere now, so that the bytes that the
// text names are another one.
static bool is_another(struct compare *c, const struct pm_types_root *root) {
    const char *text = type_text(c->new, root->text);
    const struct pm_types_root *old = type_table_root(c->old, text);
    const char *name = old ? type_text(c->old, old->variable) : "";
    const struct pm_types_root *now = root_of_variable(c->new, name);
    char message[TYPE_DIFFERENCE_TEXT];
    if (!now || now == root || !root->variable)
        return false;
    snprintf(message, sizeof message,
             "the root %.100s is %.100s in this build, it was %.100s: give it that name by "
             "`pmalloc-recover --rename-root '%.100s' %.100s HEAP`",
             text, type_text(c->new, root->variable), name, text, name);
    differ(c, 0, message);
    return true;
}

void type_compare(const struct type_table *old, const struct type_table *new,
                  struct type_differences *out) {
    struct compare c = {.old = old, .new = new, .out = out};
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < new->head.roots; i++) {
        const struct pm_types_root *root = &new->root[i], *was = old_root(old, new, root);
        if (root->is != PM_TYPES_ROOT_TYPED || is_another(&c, root) || !was)
            continue;
        out->roots++;
        visit(&c, was->type, root->type, TYPE_STEP_ROOT, i);
    }
    for (; c.at < c.visits.count && !out->failed; c.at++) {
        struct type_visit v = c.visits.visit[c.at];
        compare_visit(&c, &v);
    }
    free(c.visits.visit);
}

// ---- where a walk ends --------------------------------------------------------------------------

static void visit_once(struct type_visits *v, bool *seen, uint32_t from, uint32_t type,
                       enum type_step step, uint32_t number) {
    if (seen[type])
        return;
    seen[type] = true;
    type_visit_add(v, &(struct type_visit){type, 0, from, step, number});
}

uint32_t type_ends(const struct type_table *t, const struct pm_types_root *root, type_end_fn *fn,
                   void *arg, bool *reached) {
    struct type_visits v = {0};
    uint32_t structs = 0;
    char way[TYPE_PATH];
    bool *seen = calloc(t->head.types + 1, sizeof *seen);
    if (seen && root->is == PM_TYPES_ROOT_TYPED)
        visit_once(&v, seen, 0, root->type, TYPE_STEP_ROOT, (uint32_t)(root - t->root));
    for (uint32_t at = 0; at < v.count && !v.failed; at++) {
        uint32_t number = v.visit[at].type;
        const struct pm_types_type *type = &t->type[number];
        if (type_end(t, number))
            fn(type_way(t, &v, at, way, sizeof way), type_end(t, number), arg);
        structs += type->kind == PM_TYPES_STRUCT;
        reached[number] = true;
        if (type->kind == PM_TYPES_POINTER || type->kind == PM_TYPES_ARRAY)
            visit_once(&v, seen, at, type->to,
                       type->kind == PM_TYPES_ARRAY ? TYPE_STEP_ELEMENT : TYPE_STEP_POINTER, 0);
        for (uint32_t m = type->first; m < type->first + type->members; m++)
            if (t->member[m].is != PM_TYPES_VTABLE)
                visit_once(&v, seen, at, t->member[m].type, TYPE_STEP_MEMBER, m);
    }
    free(seen);
    free(v.visit);
    return structs;
}
