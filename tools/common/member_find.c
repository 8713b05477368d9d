// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "member_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/similar.h"

enum { DEPTH = 16, NEAR = 80, SAID = 160, STEP_MAX = 128 };

// A path being followed.
struct walk {
    struct dwarf *d;
    char said[SAID]; // of it so far, with the variable's name
    uint64_t type;
    unsigned dimension; // of the array `type`: how many of its indices were given
    uint64_t offset;
    struct pm_error *err;
};

static void say(struct walk *w, const char *step, size_t len) {
    size_t used = strlen(w->said);
    snprintf(w->said + used, sizeof w->said - used, "%.*s", (int)len, step);
}

static bool has_members(const struct dwarf_entry *e) {
    return e->tag == DW_STRUCT || e->tag == DW_CLASS || e->tag == DW_UNION;
}

static bool is_pointer(const struct dwarf_entry *e) {
    return e->tag == DW_POINTER || e->tag == DW_REFERENCE || e->tag == DW_RVALUE_REFERENCE;
}

static int is_a_pointer(struct walk *w) {
    char type[NEAR];
    dw_name(w->d, w->type, type, sizeof type);
    return pm_fail(w->err, PM_USAGE,
                   "%s is a pointer (%s), and a root is a part of one variable; what the pointer "
                   "leads to is kept anyway: name %s",
                   w->said, type, w->said);
}

// ---- arrays -------------------------------------------------------------------------------------

static int no_array(struct walk *w, const struct dwarf_entry *e) {
    char type[NEAR];
    dw_name(w->d, w->type, type, sizeof type);
    if (is_pointer(e))
        return is_a_pointer(w);
    return pm_fail(w->err, PM_USAGE, "%s is no array (%s)%s", w->said, type,
                   has_members(e) ? "; if its elements lie in the heap, they are kept anyway" : "");
}

// Reads "[N]"; *path is behind it then.
static int take_index(struct walk *w, const char **path) {
    struct dwarf_entry e;
    char *end;
    uint64_t count, stride, index = strtoull(*path + 1, &end, 0);
    if ((*path)[1] < '0' || (*path)[1] > '9' || *end != ']')
        return pm_fail(w->err, PM_USAGE, "an index is a number: %s[0]", w->said);
    if (!dw_strip(w->d, w->type, &e))
        return pm_fail(w->err, PM_USAGE, "the type of %s is not known", w->said);
    if (e.tag != DW_ARRAY)
        return no_array(w, &e);
    if (!dw_dimension(w->d, &e, w->dimension, &count, &stride) || count == UINT64_MAX)
        return pm_fail(w->err, PM_USAGE,
                       "how many elements %s has is not known; name +OFFSET/LENGTH", w->said);
    if (index >= count)
        return count ? pm_fail(w->err, PM_USAGE, "%s has %lu elements, [0] to [%lu]", w->said,
                               (unsigned long)count, (unsigned long)count - 1)
                     : pm_fail(w->err, PM_USAGE, "%s has no elements", w->said);
    w->offset += index * stride;
    bool last = !dw_dimension(w->d, &e, ++w->dimension, &count, &stride);
    w->type = last ? e.type : e.at;
    w->dimension = last ? 0 : w->dimension;
    say(w, *path, (size_t)(end + 1 - *path));
    *path = end + 1;
    return PM_OK;
}

// ---- members ------------------------------------------------------------------------------------

struct found {
    struct dwarf_entry member;
    uint64_t offset;
    unsigned count; // in how many of the bases
    bool moves;     // it is in a virtual base
};

static void look_in(struct dwarf *d, const struct dwarf_entry *of, const char *name,
                    struct found *out, unsigned depth);

// In a base class, or in a member that has no name.
static void look_below(struct dwarf *d, const struct dwarf_entry *m, const char *name,
                       struct found *out, unsigned depth) {
    struct found inner = {0};
    struct dwarf_entry e;
    if (!dw_strip(d, m->type, &e) || !has_members(&e))
        return;
    look_in(d, &e, name, &inner, depth);
    if (!inner.count)
        return;
    unsigned before = out->count;
    if (!before) {
        *out = inner;
        out->offset += m->member_at;
        out->moves |= m->moves;
    }
    out->count = before + inner.count;
}

static void look_in(struct dwarf *d, const struct dwarf_entry *of, const char *name,
                    struct found *out, unsigned depth) {
    struct dwarf_entry m;
    if (depth == 0)
        return;
    for (bool more = dw_child(d, of, &m); more; more = dw_sibling(d, &m))
        if ((m.tag == DW_MEMBER || m.tag == DW_VARIABLE) && strcmp(m.name, name) == 0) {
            *out = (struct found){.member = m, .offset = m.member_at, .count = 1};
            out->member.is_static |= m.tag == DW_VARIABLE;
            return; // it hides those of bases
        }
    for (bool more = dw_child(d, of, &m); more; more = dw_sibling(d, &m))
        if (m.tag == DW_INHERITANCE || (m.tag == DW_MEMBER && !*m.name))
            look_below(d, &m, name, out, depth - 1);
}

struct near {
    const char *name;
    char similar[NEAR];  // the first that the name may be misspelt for
    char first[3][NEAR]; // those that there are
    unsigned count;
};

// Misspelt, or longer at its end.
static bool is_near(const char *a, const char *b) {
    size_t x = strlen(a), y = strlen(b), least = x < y ? x : y;
    return pm_similar(a, b) || (least >= 2 && strncasecmp(a, b, least) == 0);
}

static void look_near(struct dwarf *d, const struct dwarf_entry *of, struct near *out,
                      unsigned depth) {
    struct dwarf_entry m, e;
    if (depth == 0)
        return;
    for (bool more = dw_child(d, of, &m); more; more = dw_sibling(d, &m)) {
        bool inside = m.tag == DW_INHERITANCE || (m.tag == DW_MEMBER && !*m.name);
        if (inside && dw_strip(d, m.type, &e) && has_members(&e))
            look_near(d, &e, out, depth - 1);
        if (m.tag != DW_MEMBER || m.is_static || !*m.name)
            continue;
        if (!*out->similar && is_near(m.name, out->name))
            snprintf(out->similar, NEAR, "%.79s", m.name);
        if (out->count++ < 3)
            snprintf(out->first[out->count - 1], NEAR, "%.40s", m.name);
    }
}

static int no_member(struct walk *w, const struct dwarf_entry *of, const char *name) {
    struct near near = {.name = name};
    char type[NEAR];
    dw_name(w->d, w->type, type, sizeof type);
    look_near(w->d, of, &near, DEPTH);
    if (*near.similar)
        return pm_fail(w->err, PM_USAGE, "%s (%s) has no member %s; did you mean %s?", w->said,
                       type, name, near.similar);
    if (!near.count)
        return pm_fail(w->err, PM_USAGE, "%s (%s) has no members", w->said, type);
    return pm_fail(w->err, PM_USAGE, "%s (%s) has no member %s, but %s%s%s%s%s%s", w->said, type,
                   name, near.first[0], near.count > 1 ? ", " : "", near.first[1],
                   near.count > 2 ? ", " : "", near.first[2], near.count > 3 ? ", ..." : "");
}

static int no_struct(struct walk *w, const struct dwarf_entry *e) {
    char type[NEAR];
    dw_name(w->d, w->type, type, sizeof type);
    if (is_pointer(e))
        return is_a_pointer(w);
    if (e->tag == DW_ARRAY)
        return pm_fail(w->err, PM_USAGE, "%s is an array (%s): name an element, as %s[0]", w->said,
                       type, w->said);
    return pm_fail(w->err, PM_USAGE, "%s (%s) has no members", w->said, type);
}

// Whether the member can be a root.
static int check_member(struct walk *w, const struct dwarf_entry *of, const struct found *f) {
    const char *name = f->member.name;
    char type[NEAR];
    if (f->count == 0 && of->declaration) {
        dw_name(w->d, w->type, type, sizeof type);
        return pm_fail(w->err, PM_USAGE,
                       "the members of %s are not known, because %s is only declared in its "
                       "file; build that with -fstandalone-debug, or name +OFFSET/LENGTH",
                       w->said, type);
    }
    if (f->count > 1)
        return pm_fail(w->err, PM_USAGE,
                       "%s has a member %s in several base classes; name +OFFSET/LENGTH", w->said,
                       name);
    if (f->moves)
        return pm_fail(w->err, PM_USAGE, "%s.%s lies in a virtual base class; name +OFFSET/LENGTH",
                       w->said, name);
    if (f->member.is_static)
        return pm_fail(w->err, PM_USAGE,
                       "%s.%s is a static member, a variable of its own: name it CLASS::%s",
                       w->said, name, name);
    if (f->member.bit_size)
        return pm_fail(w->err, PM_USAGE,
                       "%s.%s is a bit field, and a root has whole bytes: name %s, or "
                       "+OFFSET/LENGTH",
                       w->said, name, w->said);
    return PM_OK;
}

// Reads ".NAME"; *path is behind it then.
static int take_member(struct walk *w, const char **path) {
    struct dwarf_entry e;
    struct found found = {0};
    char name[STEP_MAX];
    size_t len = strcspn(*path + 1, ".[-@+*/ ");
    snprintf(name, sizeof name, "%.*s", (int)(len < STEP_MAX ? len : STEP_MAX - 1), *path + 1);
    if (len == 0)
        return pm_fail(w->err, PM_USAGE, "the name of a member is missing behind %s.", w->said);
    if (!dw_strip(w->d, w->type, &e))
        return pm_fail(w->err, PM_USAGE, "the type of %s is not known", w->said);
    if (!has_members(&e))
        return no_struct(w, &e);
    look_in(w->d, &e, name, &found, DEPTH);
    if (check_member(w, &e, &found) != PM_OK)
        return w->err->status;
    if (!found.count)
        return no_member(w, &e, name);
    w->offset += found.offset;
    w->type = found.member.type;
    say(w, *path, len + 1);
    *path += len + 1;
    return PM_OK;
}

static int take_step(struct walk *w, const char **path) {
    struct dwarf_entry e;
    if (w->dimension && (**path == '.' || **path == '-'))
        return pm_fail(w->err, PM_USAGE, "%s is an array: name an element, as %s[0]", w->said,
                       w->said);
    if (**path == '.')
        return take_member(w, path);
    if (**path == '[')
        return take_index(w, path);
    bool arrow = strncmp(*path, "->", 2) == 0;
    if (arrow && dw_strip(w->d, w->type, &e) && is_pointer(&e))
        return is_a_pointer(w);
    if (arrow)
        return pm_fail(w->err, PM_USAGE, "%s is no pointer: a '.' stands before a member", w->said);
    return pm_fail(w->err, PM_USAGE, "stray '%.20s' behind %s", *path, w->said);
}

int member_find(struct dwarf *d, uint64_t type, const char *name, const char *path,
                struct member *out, struct pm_error *err) {
    struct walk w = {.d = d, .type = type, .err = err};
    struct dwarf_entry array;
    uint64_t count;
    say(&w, name, strlen(name));
    while (*path)
        if (take_step(&w, &path) != PM_OK)
            return err->status;
    *out = (struct member){.offset = w.offset, .size = dw_size(d, w.type), .type = w.type};
    if (w.dimension && dw_read(d, w.type, &array)) { // a row of an array
        dw_dimension(d, &array, w.dimension - 1, &count, &out->size);
        out->type = array.type;
    }
    return out->size ? PM_OK
                     : pm_fail(err, PM_USAGE,
                               "how many bytes %s has is not known; name +OFFSET/LENGTH", w.said);
}
