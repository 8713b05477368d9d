// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "type_walk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/debug_info_names.h"
#include "tools/common/member_name.h"
#include "tools/common/numbers.h"
#include "tools/common/root_variable.h"

enum { QUALIFIERS_MAX = 32, BASES_MAX = 16, DEFINITIONS_MAX = 64, DERIVED_MAX = 1000 };
enum { PLACE_OF_VOID = 1 }; // no entry lies there

struct walk {
    struct dwarf *d;
    struct dw_names *names;
    struct type_table *t;
    struct numbers by_place, by_content, by_text; // each value is the number + 1
    uint64_t *to;                                 // of types: where what they lead to is
    uint64_t *of;                                 // of members: where their type is
    uint32_t beyond;                              // the type that says so, + 1
};

static uint64_t mix(uint64_t hash, uint64_t number) {
    return ((hash ^ number) * 0x100000001b3ull) ^ (hash >> 29);
}

static uint64_t mix_text(uint64_t hash, const char *text) {
    for (; *text; text++)
        hash = mix(hash, (unsigned char)*text);
    return mix(hash, 0x100);
}

static uint32_t take_text(struct walk *w, const char *text) {
    uint32_t *known = numbers_put(&w->by_text, mix_text(1, text) | 1);
    if (!known)
        w->t->failed = true;
    if (!known || (*known && strcmp(type_text(w->t, *known - 1), text) == 0))
        return known ? *known - 1 : 0;
    uint32_t at = type_table_add_text(w->t, text);
    if (!w->t->head.limited)
        *known = at + 1;
    return at;
}

// ---- what is compared of an entry ---------------------------------------------------------------

// Takes typedefs and qualifiers off. `named`: the name of the last typedef, or "".
static bool strip(struct walk *w, uint64_t at, struct dwarf_entry *out, const char **named) {
    *named = "";
    for (unsigned i = 0; at && i < QUALIFIERS_MAX; i++) {
        if (!dw_read(w->d, at, out))
            return false;
        if (out->tag != DW_TYPEDEF && out->tag != DW_CONST && out->tag != DW_VOLATILE &&
            out->tag != DW_RESTRICT && out->tag != DW_ATOMIC && out->tag != DW_TEMPLATE_ALIAS)
            return true;
        *named = out->tag == DW_TYPEDEF ? out->name : *named;
        at = out->type;
    }
    return false;
}

static uint32_t kind_of(const struct dwarf_entry *e) {
    switch (e->tag) {
    case DW_STRUCT:
    case DW_CLASS:
        return e->declaration ? PM_TYPES_INCOMPLETE : PM_TYPES_STRUCT;
    case DW_UNION:
        return PM_TYPES_UNION;
    case DW_POINTER:
    case DW_REFERENCE:
    case DW_RVALUE_REFERENCE:
        return PM_TYPES_POINTER;
    case DW_ARRAY:
        return PM_TYPES_ARRAY;
    case DW_ENUMERATION:
        return PM_TYPES_INTEGER;
    case DW_FUNCTION_TYPE:
        return PM_TYPES_FUNCTION;
    case DW_BASE: // DW_ATE_float; and boolean, the integers, characters, UTF
        return e->encoding == 4                                             ? PM_TYPES_FLOAT
               : e->encoding == 2 || (e->encoding >= 5 && e->encoding <= 8) ? PM_TYPES_INTEGER
               : e->encoding == 0x10                                        ? PM_TYPES_INTEGER
                                                                            : PM_TYPES_OTHER;
    default:
        return PM_TYPES_OTHER;
    }
}

static bool is_member(const struct dwarf_entry *e) {
    return e->tag == DW_MEMBER && !e->is_static && !e->declaration;
}

static uint64_t bit_of(struct walk *w, const struct dwarf_entry *m) {
    if (!m->bit_size || !m->from_top)
        return 8 * m->member_at + m->bit_offset;
    uint64_t unit = m->has_size ? m->size : dw_size(w->d, m->type);
    return 8 * m->member_at + 8 * unit - m->bit_offset - m->bit_size;
}

// Of its name, its size and its members, without what they lead to.
static uint64_t hash_of(struct walk *w, const struct dwarf_entry *e, const char *name) {
    struct dwarf_entry m, type;
    uint64_t hash = mix(mix_text(0xcbf29ce484222325ull, name), e->size);
    for (bool more = dw_child(w->d, e, &m); more; more = dw_sibling(w->d, &m)) {
        const char *named;
        if (!is_member(&m) && m.tag != DW_INHERITANCE)
            continue;
        hash = mix(mix_text(mix(hash, bit_of(w, &m)), m.name), m.bit_size);
        if (strip(w, m.type, &type, &named))
            hash = mix(mix_text(mix(hash, type.tag), type.name), type.size);
    }
    return hash | 1;
}

// Whether objects of it have a pointer to a table of virtual functions.
static bool is_polymorphic(struct walk *w, const struct dwarf_entry *e, unsigned depth) {
    struct dwarf_entry m, base;
    const char *named;
    for (bool more = depth && dw_child(w->d, e, &m); more; more = dw_sibling(w->d, &m))
        if ((m.tag == DW_MEMBER && strncmp(m.name, "_vptr", 5) == 0) ||
            (m.tag == DW_INHERITANCE && strip(w, m.type, &base, &named) &&
             is_polymorphic(w, &base, depth - 1)))
            return true;
    return false;
}

// ---- members ------------------------------------------------------------------------------------

static bool add_member(struct walk *w, const struct pm_types_member *m, uint64_t type) {
    uint32_t count = w->t->head.members;
    if (count == PM_TYPES_MEMBERS_MOST) {
        w->t->head.limited = 1;
        return false;
    }
    if (!(count & (count - 1))) {
        uint64_t *more = realloc(w->of, (count ? 2 * (size_t)count : 1) * sizeof *more);
        w->t->failed |= !more;
        w->of = more ? more : w->of;
    }
    if (w->t->failed)
        return false;
    w->of[count] = type;
    type_table_add_member(w->t, m);
    return !w->t->failed;
}

static bool add_argument(struct walk *w, const struct dwarf_entry *e) {
    struct pm_types_member m = {.is = PM_TYPES_ARGUMENT, .name = take_text(w, e->name)};
    struct dwarf_entry each;
    bool good = true;
    if (e->tag == DW_TEMPLATE_TYPE)
        return add_member(w, &m, e->type);
    for (bool more = dw_child(w->d, e, &each); more && good; more = dw_sibling(w->d, &each))
        if (each.tag == DW_TEMPLATE_TYPE)
            good = add_member(w, &m, each.type);
    return good;
}

static bool add_child(struct walk *w, const struct dwarf_entry *e) {
    struct pm_types_member m = {.at = bit_of(w, e), .bits = (uint32_t)e->bit_size};
    if (e->tag == DW_TEMPLATE_TYPE || e->tag == DW_TEMPLATE_PACK)
        return add_argument(w, e);
    if (e->tag == DW_INHERITANCE)
        m.is = e->moves ? PM_TYPES_VIRTUAL_BASE : PM_TYPES_BASE;
    else if (!is_member(e))
        return true;
    else if (strncmp(e->name, "_vptr", 5) == 0) // compilers differ in what follows
        m.is = PM_TYPES_VTABLE;
    else
        m.name = take_text(w, e->name);
    return add_member(w, &m, e->type);
}

// A class that data may have where its base is named. Those of the standard library hide what they
// contain, such as the block that shared pointers count in: any of a program's types may be in it,
// and which one is, the arguments of the pointer say.
static bool add_derived(struct walk *w, const struct dwarf_entry *e, const char *name) {
    bool good = true;
    uint64_t at;
    if (!*name || strncmp(name, "std::", 5) == 0 || !is_polymorphic(w, e, BASES_MAX))
        return true;
    for (unsigned i = 0; good && (at = dw_names_derived(w->names, name, i)) != 0; i++) {
        w->t->head.limited |= i == DERIVED_MAX;
        if (i == DERIVED_MAX)
            break;
        good = add_member(w, &(struct pm_types_member){.is = PM_TYPES_DERIVED}, at);
    }
    return good;
}

static void add_members(struct walk *w, struct pm_types_type *type, const struct dwarf_entry *e,
                        const char *name) {
    struct dwarf_entry m;
    bool good = true;
    type->first = w->t->head.members;
    for (bool more = dw_child(w->d, e, &m); more && good; more = dw_sibling(w->d, &m)) {
        if (m.tag == DW_VARIANT_PART)
            type->kind = PM_TYPES_UNION;
        good = add_child(w, &m);
    }
    good = good && add_derived(w, e, name);
    if (!good)
        type->kind = PM_TYPES_BEYOND;
    if (type->kind != PM_TYPES_STRUCT)
        w->t->head.members = type->first;
    type->members = w->t->head.members - type->first;
}

// ---- types --------------------------------------------------------------------------------------

static uint32_t add_type(struct walk *w, const struct pm_types_type *type, uint64_t to) {
    uint32_t count = w->t->head.types;
    if (!(count & (count - 1))) {
        uint64_t *more = realloc(w->to, (count ? 2 * (size_t)count : 1) * sizeof *more);
        w->t->failed |= !more;
        w->to = more ? more : w->to;
    }
    if (w->t->failed)
        return 0;
    w->to[count] = to;
    return type_table_add_type(w->t, type);
}

static uint32_t beyond(struct walk *w) {
    w->t->head.limited = 1;
    if (!w->beyond)
        w->beyond = add_type(w, &(struct pm_types_type){.kind = PM_TYPES_BEYOND}, 0) + 1;
    return w->beyond - 1;
}

// The definition of what is only declared where it is used. False: there is none, or it is not
// known which of several is meant.
static bool define(struct walk *w, struct dwarf_entry *e, const char *name, uint32_t *kind) {
    struct dwarf_entry first = {0}, other;
    uint64_t at, hash = 0;
    unsigned count = 0;
    for (unsigned i = 0; i < DEFINITIONS_MAX && (at = dw_names_defined(w->names, name, i)); i++) {
        if (!dw_read(w->d, at, &other) || other.declaration || other.tag == DW_UNION)
            continue;
        uint64_t own = hash_of(w, &other, name);
        if (count++ && own != hash) {
            *kind = PM_TYPES_SEVERAL;
            return false;
        }
        first = other;
        hash = own;
    }
    if (count)
        *e = first;
    return count != 0;
}

static uint64_t elements(struct walk *w, const struct dwarf_entry *e) {
    uint64_t all = dw_size(w->d, e->at), one = dw_size(w->d, e->type);
    return all && one ? all / one : UINT64_MAX;
}

static uint32_t make_struct(struct walk *w, const struct dwarf_entry *e, const char *name) {
    struct pm_types_type type = {
        .size = e->size, .kind = PM_TYPES_STRUCT, .is_class = e->tag == DW_CLASS};
    type.hash = hash_of(w, e, name);
    uint32_t *same = *name ? numbers_put(&w->by_content, type.hash) : NULL;
    if (same && *same) // another file of the program has it, too
        return *same - 1;
    type.name = take_text(w, name);
    add_members(w, &type, e, name);
    uint32_t made = add_type(w, &type, 0);
    same = *name ? numbers_put(&w->by_content, type.hash) : NULL;
    if (same)
        *same = made + 1;
    return made;
}

static uint32_t make_type(struct walk *w, struct dwarf_entry *e, const char *named) {
    const char *scoped = dw_names_of(w->names, e->at);
    const char *name = *scoped ? scoped : *e->name ? e->name : named;
    uint32_t kind = kind_of(e);
    if (kind == PM_TYPES_INCOMPLETE && define(w, e, name, &kind))
        kind = PM_TYPES_STRUCT;
    if (kind == PM_TYPES_STRUCT)
        return make_struct(w, e, name);
    struct pm_types_type type = {.kind = kind, .is_class = e->tag == DW_CLASS};
    type.size = kind == PM_TYPES_POINTER ? sizeof(void *) : dw_size(w->d, e->at);
    type.name = take_text(w, name);
    if (kind == PM_TYPES_ARRAY)
        type.count = elements(w, e);
    return add_type(w, &type, e->type);
}

// The number of the type at a place. What it leads to comes later, so nothing nests.
static uint32_t take_type(struct walk *w, uint64_t at) {
    struct dwarf_entry e = {.at = PLACE_OF_VOID};
    const char *named = "";
    bool some = at && strip(w, at, &e, &named);
    uint64_t place = some ? e.at : PLACE_OF_VOID;
    uint32_t known = numbers_get(&w->by_place, place);
    if (known)
        return known - 1;
    if (w->t->head.types >= PM_TYPES_MOST || w->t->head.text > PM_TYPES_TEXT_MOST / 2)
        return beyond(w);
    uint32_t made = some ? make_type(w, &e, named)
                         : add_type(w, &(struct pm_types_type){.kind = PM_TYPES_VOID}, 0);
    uint32_t *slot = numbers_put(&w->by_place, place);
    w->t->failed |= !slot;
    if (slot)
        *slot = made + 1;
    return made;
}

// Nearer types come first, so that a limit leaves out the farther ones.
static void follow(struct walk *w) {
    for (uint32_t i = 0; i < w->t->head.types && !w->t->failed; i++) {
        struct pm_types_type type = w->t->type[i];
        uint32_t to = 0;
        if (type.kind == PM_TYPES_POINTER || type.kind == PM_TYPES_ARRAY)
            to = take_type(w, w->to[i]);
        if (!w->t->failed)
            w->t->type[i].to = to;
        for (uint32_t m = type.first; m < type.first + type.members && !w->t->failed; m++) {
            uint32_t of = take_type(w, w->of[m]);
            if (!w->t->failed)
                w->t->member[m].type = of;
        }
    }
}

// ---- roots --------------------------------------------------------------------------------------

void type_root_text(const struct pm_spec *root, char out[PM_SPEC_TEXT_LEN]) {
    struct pm_spec spec = *root;
    spec.when = 0;
    if (pm_spec_format(&spec, out, PM_SPEC_TEXT_LEN) < 0)
        *out = '\0';
}

static bool is_program(const struct program_types *p, const char *object) {
    const char *slash = strrchr(p->path, '/');
    return !*object || strcmp(slash ? slash + 1 : p->path, object) == 0;
}

// Where the program has it.
static enum pm_types_root_is place_root(struct program_types *p, const struct pm_spec *spec,
                                        uint64_t *address) {
    struct root_variable v = {.path = ""};
    struct pm_error ignored;
    if (spec->kind == PM_ROOT_OBJECT)
        return PM_TYPES_ROOT_WHOLE;
    if (!is_program(p, spec->object))
        return PM_TYPES_ROOT_LIBRARY;
    *address = spec->offset;
    if (!*spec->name)
        return PM_TYPES_ROOT_TYPED;
    snprintf(v.name, sizeof v.name, "%s", spec->name);
    if (root_variable_find(p, &v, &ignored) != PM_OK)
        return PM_TYPES_ROOT_UNKNOWN;
    *address += v.address;
    return v.found ? PM_TYPES_ROOT_TYPED : PM_TYPES_ROOT_LIBRARY;
}

static void take_root(struct walk *w, struct program_types *p, const struct pm_spec *spec) {
    char text[PM_SPEC_TEXT_LEN], name[MEMBER_NAME] = "", part[MEMBER_NAME] = "";
    struct pm_types_root root = {0};
    struct dwarf_entry variable;
    struct member member;
    uint64_t address = 0;
    type_root_text(spec, text);
    if (!*text || type_table_root(w->t, text))
        return;
    root.text = take_text(w, text);
    root.is = place_root(p, spec, &address);
    if (root.is == PM_TYPES_ROOT_TYPED && !dw_variable_around(w->d, address, &variable))
        root.is = PM_TYPES_ROOT_UNKNOWN;
    if (root.is == PM_TYPES_ROOT_TYPED) {
        uint64_t all = dw_size(w->d, variable.type), offset = address - variable.address, type;
        root.length = spec->kind == PM_ROOT_RANGE ? spec->length : all;
        dw_full_name(w->d, &variable, name, sizeof name);
        bool whole = offset == 0 && root.length == all;
        // Bytes that are no one member are checked with all of their variable.
        bool one = !whole && member_begins(w->d, variable.type, offset, root.length, part, &member);
        type = one && member.size == root.length ? member.type : variable.type;
        *part = '\0';
        if (member_range(w->d, variable.type, name, offset, root.length, part))
            root.variable = take_text(w, strcmp(part, text) == 0 ? "" : part);
        root.type = take_type(w, type);
    }
    type_table_add_root(w->t, &root);
}

bool type_walk(struct program_types *program, const struct type_build *build,
               const struct pm_spec *roots, size_t count, struct type_table *out) {
    struct walk w = {.d = program->types, .t = out};
    const char *missing = dw_missing(program->types);
    *out = (struct type_table){0};
    w.names = dw_names_make(program->types);
    if (!w.names)
        return false;
    out->head.build_id_len = build->len;
    memcpy(out->head.build_id, build->id, sizeof build->id);
    out->head.limited = dw_names_limited(w.names);
    type_table_add_text(out, "");
    out->head.missing = take_text(&w, missing ? missing : "");
    for (size_t i = 0; i < count && !out->failed; i++)
        take_root(&w, program, &roots[i]);
    follow(&w);
    free(w.to);
    free(w.of);
    return !out->failed;
}
