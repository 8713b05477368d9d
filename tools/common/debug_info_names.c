// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "debug_info_names.h"

#include <dwarf.h> // of libdw
#include <elfutils/libdw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

enum { NESTING_MAX = 64, NAME_MAX_LEN = 1000, ENTRIES_MAX = 1 << 22 };

// Numbers of entries, names and bases count from 1; 0 is none.
struct entry {
    uint64_t at;
    uint32_t name, next; // the next definition of that name
};

struct name {
    const char *text;
    uint64_t hash;
    uint32_t same;                         // the next name with this hash
    uint32_t defined, last_defined, bases; // of entry, and of base
};

struct base {
    uint64_t at; // of the base class
    uint32_t derived, next;
};

struct dw_names {
    struct entry *entry;
    struct name *name;
    struct base *base;
    uint32_t entries, names, bases;
    struct numbers by_place, by_hash, pairs;
    bool limited, failed;
};

// Makes room for one more of an array of `count`.
static bool have_room(void **array, uint32_t count, size_t size) {
    if (count & (count - 1))
        return true;
    void *more = realloc(*array, (count ? 2 * (size_t)count : 2) * size);
    if (more)
        *array = more;
    return more != NULL;
}

// ---- names --------------------------------------------------------------------------------------

static uint64_t hash_of(const char *text) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3ull;
    return hash | 1;
}

static uint32_t find_name(const struct dw_names *n, const char *text) {
    uint64_t hash = hash_of(text);
    uint32_t i = numbers_get(&n->by_hash, hash);
    while (i && strcmp(n->name[i - 1].text, text) != 0)
        i = n->name[i - 1].same;
    return i;
}

static uint32_t take_name(struct dw_names *n, const char *text) {
    uint32_t found = find_name(n, text);
    if (found)
        return found;
    uint64_t hash = hash_of(text);
    uint32_t *first = numbers_put(&n->by_hash, hash);
    char *copy = strdup(text);
    n->failed |= !first || !copy || !have_room((void **)&n->name, n->names, sizeof *n->name);
    if (n->failed)
        return 0;
    n->name[n->names++] = (struct name){.text = copy, .hash = hash, .same = *first};
    return *first = n->names;
}

static uint64_t place_of(const Dwarf_Die *die) { return (uint64_t)(uintptr_t)die->addr; }

static uint32_t add(struct dw_names *n, Dwarf_Die *die, const char *text) {
    uint32_t *place = numbers_put(&n->by_place, place_of(die)), name = take_name(n, text);
    bool declared = dwarf_hasattr(die, DW_AT_declaration) || dwarf_hasattr(die, DW_AT_signature);
    n->failed |= !place || !have_room((void **)&n->entry, n->entries, sizeof *n->entry);
    if (n->failed)
        return 0;
    n->entry[n->entries++] = (struct entry){.at = place_of(die), .name = name};
    *place = n->entries;
    struct name *of = &n->name[name - 1];
    if (declared)
        return n->entries;
    if (of->defined)
        n->entry[of->last_defined - 1].next = n->entries;
    else
        of->defined = n->entries;
    of->last_defined = n->entries;
    return n->entries;
}

static void add_base(struct dw_names *n, Dwarf_Die *inheritance, uint32_t derived) {
    Dwarf_Attribute a;
    Dwarf_Die base;
    if (!dwarf_attr(inheritance, DW_AT_type, &a) || !dwarf_formref_die(&a, &base))
        return;
    n->failed |= !have_room((void **)&n->base, n->bases, sizeof *n->base);
    if (!n->failed)
        n->base[n->bases++] = (struct base){.at = place_of(&base), .derived = derived};
}

// ---- all units ----------------------------------------------------------------------------------

static void scan(struct dw_names *n, Dwarf_Die *of, const char *scope, uint32_t derived,
                 unsigned depth);

// Defined outside of the scope in which it was declared: that has its name.
static const char *declared_name(const struct dw_names *n, Dwarf_Die *die) {
    Dwarf_Attribute a;
    Dwarf_Die to;
    if (!dwarf_attr(die, DW_AT_specification, &a) || !dwarf_formref_die(&a, &to))
        return "";
    return dw_names_of(n, place_of(&to));
}

static void scan_class(struct dw_names *n, Dwarf_Die *die, const char *scope, unsigned depth) {
    const char *own = declared_name(n, die), *name = dwarf_diename(die);
    char full[NAME_MAX_LEN + 3];
    if (!*own && !name)
        return;
    if (*own)
        snprintf(full, sizeof full - 2, "%s", own);
    else
        snprintf(full, sizeof full - 2, "%s%s", scope, name);
    uint32_t entry = add(n, die, full);
    n->limited |= n->entries == ENTRIES_MAX;
    if (entry && dwarf_haschildren(die) == 1) {
        strcat(full, "::");
        scan(n, die, full, entry, depth);
    }
}

static void scan_namespace(struct dw_names *n, Dwarf_Die *die, const char *scope, unsigned depth) {
    const char *name = dwarf_diename(die);
    char full[NAME_MAX_LEN + 3];
    snprintf(full, sizeof full, "%s%s::", scope, name ? name : "(anonymous namespace)");
    scan(n, die, full, 0, depth);
}

// `derived`: the entry of the class of which these are the parts.
static void scan(struct dw_names *n, Dwarf_Die *of, const char *scope, uint32_t derived,
                 unsigned depth) {
    Dwarf_Die die;
    if (depth == 0 || dwarf_child(of, &die) != 0)
        return;
    do {
        int tag = dwarf_tag(&die);
        if (tag == DW_TAG_structure_type || tag == DW_TAG_class_type || tag == DW_TAG_union_type)
            scan_class(n, &die, scope, depth - 1);
        else if (tag == DW_TAG_namespace)
            scan_namespace(n, &die, scope, depth - 1);
        else if (tag == DW_TAG_inheritance && derived)
            add_base(n, &die, derived);
    } while (!n->limited && !n->failed && dwarf_siblingof(&die, &die) == 0);
}

static void scan_file(struct dw_names *n, Dwarf *file) {
    Dwarf_CU *unit = NULL;
    Dwarf_Die top, split;
    uint8_t kind;
    while (!n->limited && !n->failed &&
           dwarf_get_units(file, unit, &unit, NULL, &kind, &top, &split) == 0) {
        Dwarf_Die *from = kind == DW_UT_skeleton && split.addr ? &split : &top;
        scan(n, from, "", 0, NESTING_MAX);
    }
}

// Only now each base class is known by its name.
static void name_bases(struct dw_names *n) {
    for (uint32_t i = n->bases; i > 0; i--) {
        struct base *b = &n->base[i - 1];
        uint32_t entry = numbers_get(&n->by_place, b->at);
        if (!entry)
            continue;
        uint32_t base = n->entry[entry - 1].name, derived = n->entry[b->derived - 1].name;
        uint32_t *seen = numbers_put(&n->pairs, (uint64_t)base << 32 | derived);
        n->failed |= !seen;
        if (!seen || *seen) // in another file of the program
            continue;
        *seen = 1;
        b->next = n->name[base - 1].bases;
        n->name[base - 1].bases = i;
    }
}

struct dw_names *dw_names_make(struct dwarf *d) {
    struct dw_names *n = calloc(1, sizeof *n);
    Dwarf *file = dw_handle(d), *shared = dwarf_getalt(file);
    if (!n)
        return NULL;
    scan_file(n, file);
    if (shared)
        scan_file(n, shared);
    if (!n->failed)
        name_bases(n);
    return n->failed ? NULL : n;
}

// ---- questions ----------------------------------------------------------------------------------

bool dw_names_limited(const struct dw_names *n) { return n->limited; }

const char *dw_names_of(const struct dw_names *n, uint64_t at) {
    uint32_t entry = at ? numbers_get(&n->by_place, at) : 0;
    return entry ? n->name[n->entry[entry - 1].name - 1].text : "";
}

uint64_t dw_names_defined(const struct dw_names *n, const char *name, unsigned i) {
    uint32_t found = find_name(n, name), entry = found ? n->name[found - 1].defined : 0;
    while (entry && i--)
        entry = n->entry[entry - 1].next;
    return entry ? n->entry[entry - 1].at : 0;
}

uint64_t dw_names_derived(const struct dw_names *n, const char *name, unsigned i) {
    uint32_t found = find_name(n, name), base = found ? n->name[found - 1].bases : 0;
    while (base && i--)
        base = n->base[base - 1].next;
    return base ? n->entry[n->base[base - 1].derived - 1].at : 0;
}
