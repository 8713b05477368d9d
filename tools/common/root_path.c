// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "root_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "member_find.h"
#include "root_variable.h"
#include "roots/root_table.h"

// ---- the text of one root -----------------------------------------------------------------------

// "table[3].head@idle" is the spec table@idle, and what is behind its name. A path with no index
// looks like the name of a symbol, "server.db", and is taken apart later.
struct named {
    struct pm_spec spec;
    char tail[PM_SPEC_TEXT_LEN]; // "[3].head", or ""
    struct root_place place;     // once it is found
};

static int take_apart(const char *text, size_t len, struct named *out, struct pm_error *err) {
    char head[PM_SPEC_TEXT_LEN];
    size_t from = 0, to = len;
    while (from < len && text[from] != '[' &&
           !(text[from] == '-' && from + 1 < len && text[from + 1] == '>'))
        from++;
    memset(out, 0, sizeof *out);
    if (from == len || from == 0 || len >= sizeof head)
        return pm_spec_parse_one(text, len, &out->spec, err);
    for (size_t at = from; at < len; at++)
        if (text[at] == '@')
            to = at;
    snprintf(out->tail, sizeof out->tail, "%.*s", (int)(to - from), text + from);
    snprintf(head, sizeof head, "%.*s%.*s", (int)from, text, (int)(len - to), text + to);
    if (pm_spec_parse_one(head, strlen(head), &out->spec, err) != PM_OK)
        return err->status;
    if (out->spec.kind != PM_ROOT_SYMBOL)
        return pm_fail(err, PM_USAGE, "\"%.*s\": no member path stands behind a range or *",
                       (int)(len < 72 ? len : 72), text);
    return PM_OK;
}

// ---- the path -----------------------------------------------------------------------------------

// Writes which bytes of the variable the path names.
static int name_member(struct program_types *t, const struct root_variable *v, struct named *n,
                       struct pm_error *err) {
    struct pm_spec *out = &n->spec;
    struct dwarf_entry e;
    struct member m;
    if (!program_types_load(t)) {
        struct pm_error why;
        program_types_missing(t, &why);
        return pm_fail(err, PM_USAGE, "%.400s; or name %.60s+OFFSET/LENGTH", why.text, v->name);
    }
    bool known = dw_variable(t->types, v->address, &e);
    int status = known ? member_find(t->types, e.type, v->name, v->path, &m, err) : PM_USAGE;
    if (status != PM_OK && dw_missing(t->types))
        return pm_fail(err, PM_USAGE,
                       "the debug information of %.200s lies in part in %.200s, which is missing: "
                       "put it there, or name %.60s+OFFSET/LENGTH",
                       t->path, dw_missing(t->types), v->name);
    if (!known)
        return pm_fail(err, PM_USAGE,
                       "the type of %s is not known: build its file with -g, or name "
                       "%s+OFFSET/LENGTH",
                       v->name, v->name);
    if (status != PM_OK)
        return status;
    if (m.offset > v->size || m.size > v->size - m.offset)
        return pm_fail(err, PM_USAGE, "%s has %lu bytes, and its type has more", v->name,
                       (unsigned long)v->size);
    n->place = (struct root_place){v->address + m.offset, m.size, m.type};
    out->kind = PM_ROOT_RANGE;
    out->offset = m.offset + (v->exported ? 0 : v->address);
    out->length = m.size;
    memset(out->name, 0, sizeof out->name);
    if (v->exported)
        memcpy(out->name, v->name, strlen(v->name));
    return PM_OK;
}

// A name that only the debug file has becomes a range. Any other one stays: it is the program's, or
// may be a library's.
static int whole_variable(struct program_types *t, struct pm_spec *out, bool *known,
                          struct pm_error *err) {
    struct root_variable v = {.path = ""};
    memcpy(v.name, out->name, sizeof v.name);
    if (root_variable_find(t, &v, err) != PM_OK)
        return err->status;
    *known = v.found;
    if (!v.found || v.exported || v.size == 0)
        return PM_OK;
    if (out->kind == PM_ROOT_RANGE && (out->offset > v.size || out->length > v.size - out->offset))
        return pm_fail(err, PM_USAGE, "the variable has %lu bytes", (unsigned long)v.size);
    if (out->kind == PM_ROOT_SYMBOL)
        out->length = v.size;
    out->kind = PM_ROOT_RANGE;
    out->offset += v.address;
    memset(out->name, 0, sizeof out->name);
    return PM_OK;
}

// Tries each '.' as the end of the variable's name, from the last one on: symbols may have dots,
// too.
static int member_of_variable(struct program_types *t, struct named *n, struct root_variable *last,
                              struct pm_error *err) {
    char whole[2 * PM_SPEC_TEXT_LEN];
    size_t name = strlen(n->spec.name);
    snprintf(whole, sizeof whole, "%s%s", n->spec.name, n->tail);
    for (size_t len = name; len > 0; len--) {
        if (len < name ? whole[len] != '.' : !*n->tail)
            continue;
        *last = (struct root_variable){.path = whole + len};
        snprintf(last->name, sizeof last->name, "%.*s", (int)len, whole);
        if (root_variable_find(t, last, err) != PM_OK)
            return err->status;
        if (last->found && n->spec.kind == PM_ROOT_RANGE)
            return pm_fail(err, PM_USAGE,
                           "no +OFFSET/LENGTH stands behind a member: count from the begin of %s",
                           last->name);
        if (last->found)
            return name_member(t, last, n, err);
    }
    return PM_OK;
}

static bool all_digits(const char *text) { return text[strspn(text, "0123456789.")] == '\0'; }

static bool is_program(const struct program_types *t, const char *object) {
    const char *slash = strrchr(t->path, '/');
    return !*object || strcmp(slash ? slash + 1 : t->path, object) == 0;
}

static int resolve(struct program_types *t, struct named *n, struct pm_error *err) {
    struct root_variable last = {.path = ""};
    char *name = n->spec.name, *dot = strchr(name, '.');
    bool known = false;
    if (!is_program(t, n->spec.object))
        return *n->tail ? pm_fail(err, PM_USAGE,
                                  "members of a library's variables are not known here: name "
                                  "%s:%s+OFFSET/LENGTH",
                                  n->spec.object, name)
                        : PM_OK;
    if (!*name)
        return PM_OK;
    if (!*n->tail && whole_variable(t, &n->spec, &known, err) != PM_OK)
        return err->status;
    if (known || (!dot && !*n->tail))
        return PM_OK;
    if (member_of_variable(t, n, &last, err) != PM_OK)
        return err->status;
    // Names with a dot that are not the program's may be a library's.
    bool library = !*n->tail && (all_digits(dot) || !*last.near);
    return last.found || library ? PM_OK : root_variable_missing(t, &last, err);
}

int root_path_read(struct program_types *t, const char *text, size_t len, struct pm_spec *out,
                   struct root_place *place, struct pm_error *err) {
    struct named n;
    if (take_apart(text, len, &n, err) != PM_OK)
        return err->status;
    if (resolve(t, &n, err) != PM_OK)
        return pm_fail_in(err, "\"%.*s\"", (int)(len < 100 ? len : 100), text);
    *out = n.spec;
    if (place)
        *place = n.place;
    return PM_OK;
}

// ---- all of PMALLOC_ROOTS -----------------------------------------------------------------------

static int check_one(const char *text, size_t len, void *arg, struct pm_error *err) {
    struct named ignored;
    (void)arg;
    return take_apart(text, len, &ignored, err);
}

int root_paths_check(const char *value, struct pm_error *err) {
    return pm_spec_each(value, check_one, NULL, err);
}

struct reading {
    const char *program;
    struct program_types types;
    FILE *out;
    unsigned count;
    bool changed;
};

static int read_one(const char *text, size_t len, void *arg, struct pm_error *err) {
    struct reading *r = arg;
    struct pm_spec spec, before;
    struct pm_error ignored;
    char now[PM_SPEC_TEXT_LEN];
    bool plain = pm_spec_parse_one(text, len, &before, &ignored) == PM_OK;
    bool open = r->types.program.map || program_types_of(&r->types, r->program, err) == PM_OK;
    if (!open && plain) // it may be executed without being read
        spec = before;
    else if (!open || root_path_read(&r->types, text, len, &spec, NULL, err) != PM_OK)
        return err->status;
    if (pm_spec_format(&spec, now, sizeof now) < 0)
        return pm_fail(err, PM_USAGE, "\"%.*s\" is too long", (int)(len < 72 ? len : 72), text);
    r->changed |= !plain || !pm_spec_equal(&spec, &before);
    fprintf(r->out, "%s%s", r->count++ ? "," : "", now);
    return PM_OK;
}

int root_paths_read(const char *value, const char *program, char **out, struct pm_error *err) {
    static struct reading r;
    size_t size;
    *out = NULL;
    r = (struct reading){.program = program, .out = open_memstream(out, &size)};
    if (!r.out)
        return pm_fail(err, PM_OPERATIONAL, "no memory for the roots");
    int status = pm_spec_each(value, read_one, &r, err);
    bool written = fclose(r.out) == 0 && *out;
    if (status == PM_OK && written && r.changed)
        return PM_OK;
    free(*out);
    *out = NULL;
    return status != PM_OK || written ? status
                                      : pm_fail(err, PM_OPERATIONAL, "no memory for the roots");
}

// ---- roots of a heap ----------------------------------------------------------------------------

struct sought {
    const char *text;
    struct pm_spec spec;
    bool has_spec, found;
    char *out;
};

static void compare_root(const struct pm_root *root, const char *text, void *arg) {
    struct sought *s = arg;
    struct pm_spec spec;
    struct pm_error ignored;
    (void)root;
    bool same = strcmp(text, s->text) == 0;
    if (!same && (s->found || !s->has_spec ||
                  pm_spec_parse_one(text, strlen(text), &spec, &ignored) != PM_OK ||
                  !pm_spec_same(&spec, &s->spec)))
        return;
    s->found = true;
    snprintf(s->out, PM_SPEC_TEXT_LEN, "%s", text);
}

static bool is_path(const char *text) { return strpbrk(text, ".[") || strstr(text, "->"); }

int root_path_in_heap(const char *heap, const char *text, char out[PM_SPEC_TEXT_LEN],
                      struct pm_error *err) {
    static struct program_types t;
    struct pm_error ignored;
    struct sought s = {.text = text, .out = out};
    s.has_spec = pm_spec_parse_one(text, strlen(text), &s.spec, &ignored) == PM_OK;
    snprintf(out, PM_SPEC_TEXT_LEN, "%s", text);
    pm_roots_list(compare_root, &s);
    if (s.found || !is_path(text))
        return PM_OK;
    if (program_types_open(&t, heap, err) != PM_OK ||
        root_path_read(&t, text, strlen(text), &s.spec, NULL, err) != PM_OK)
        return err->status;
    s.has_spec = true;
    pm_roots_list(compare_root, &s);
    return PM_OK;
}

int root_path_of_heap(const char *heap, const char *text, char out[PM_SPEC_TEXT_LEN],
                      struct pm_error *err) {
    static struct program_types t;
    struct pm_spec spec;
    snprintf(out, PM_SPEC_TEXT_LEN, "%s", text);
    if (!is_path(text))
        return PM_OK;
    if (program_types_now(&t, heap, err) != PM_OK ||
        root_path_read(&t, text, strlen(text), &spec, NULL, err) != PM_OK)
        return err->status;
    if (pm_spec_format(&spec, out, PM_SPEC_TEXT_LEN) < 0)
        return pm_fail(err, PM_USAGE, "the name %.100s is too long", text);
    return PM_OK;
}
