// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "debug_info.h"

#include <dwarf.h> // of libdw
#include <elfutils/libdw.h>
#include <elfutils/libdwelf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NESTING_MAX = 200, ORIGINS_MAX = 4 };

// A variable with an address.
struct place {
    uint64_t address, at;
};

struct dwarf {
    Dwarf *of;
    const char *missing;  // a file that it leads to and that is not there; or NULL
    struct place *places; // sorted by address
    size_t place_count;
};

// ---- entries ------------------------------------------------------------------------------------

// A place is where libdw has an entry: in the program's file, or another one that that leads to.
static uint64_t place_of(const Dwarf_Die *die) { return (uint64_t)(uintptr_t)die->addr; }

static bool die_at(const struct dwarf *d, uint64_t at, Dwarf_Die *die) {
    return at && dwarf_die_addr_die(d->of, (void *)(uintptr_t)at, die);
}

static void take_location(Dwarf_Attribute *a, struct dwarf_entry *out) {
    Dwarf_Op *op;
    size_t ops;
    Dwarf_Attribute address;
    if (dwarf_getlocation(a, &op, &ops) != 0 || ops != 1)
        return;
    out->address = op->number;
    out->has_address = op->atom == DW_OP_addr;
    if (op->atom == DW_OP_addrx || op->atom == DW_OP_GNU_addr_index)
        out->has_address = dwarf_getlocation_attr(a, op, &address) == 0 &&
                           dwarf_formaddr(&address, &out->address) == 0;
}

static void take_member_at(Dwarf_Attribute *a, struct dwarf_entry *out) {
    Dwarf_Op *op;
    size_t ops;
    Dwarf_Word number;
    if (dwarf_formudata(a, &number) == 0)
        out->member_at = number;
    else if (dwarf_getlocation(a, &op, &ops) == 0 && ops == 1 && op->atom == DW_OP_plus_uconst)
        out->member_at = op->number;
    else
        out->moves = true;
}

static void take_number(Dwarf_Attribute *a, struct dwarf_entry *out) {
    Dwarf_Word number;
    if (dwarf_formudata(a, &number) != 0)
        return;
    switch (dwarf_whatattr(a)) {
    case DW_AT_byte_size:
        out->size = number;
        out->has_size = true;
        break;
    case DW_AT_bit_offset:
        out->bit_offset = number;
        out->from_top = true;
        break;
    case DW_AT_data_bit_offset:
        out->bit_offset = number;
        break;
    case DW_AT_bit_size:
        out->bit_size = number;
        break;
    case DW_AT_const_value:
        out->value = (int64_t)number;
        break;
    case DW_AT_upper_bound:
        out->count = number + 1;
        break;
    case DW_AT_count:
        out->count = number;
        break;
    case DW_AT_encoding:
        out->encoding = number;
        break;
    default:
        break;
    }
}

static const char *text_of(Dwarf_Attribute *a) {
    const char *text = dwarf_formstring(a);
    return text ? text : "";
}

static uint64_t reference_of(Dwarf_Attribute *a) {
    Dwarf_Die to;
    return dwarf_formref_die(a, &to) ? place_of(&to) : 0;
}

static bool flag_of(Dwarf_Attribute *a) {
    bool flag = false;
    return dwarf_formflag(a, &flag) == 0 && flag;
}

static int take_attribute(Dwarf_Attribute *a, void *arg) {
    struct dwarf_entry *out = arg;
    switch (dwarf_whatattr(a)) {
    case DW_AT_location:
        take_location(a, out);
        break;
    case DW_AT_name:
        out->name = text_of(a);
        break;
    case DW_AT_linkage_name:
    case DW_AT_MIPS_linkage_name:
        out->linkage = text_of(a);
        break;
    case DW_AT_abstract_origin:
    case DW_AT_specification:
        out->origin = reference_of(a);
        break;
    case DW_AT_type:
        out->type = reference_of(a);
        break;
    case DW_AT_data_member_location:
        take_member_at(a, out);
        break;
    case DW_AT_signature:
        out->elsewhere = reference_of(a);
        break;
    case DW_AT_declaration:
        out->declaration = flag_of(a);
        break;
    case DW_AT_external: // a member that has it is no part of the object
        out->is_static = flag_of(a);
        break;
    default:
        take_number(a, out);
    }
    return DWARF_CB_OK;
}

static bool read_die(Dwarf_Die *die, struct dwarf_entry *out) {
    int tag = dwarf_tag(die);
    *out = (struct dwarf_entry){
        .at = place_of(die), .name = "", .linkage = "", .count = UINT64_MAX, .tag = (uint32_t)tag};
    return tag != DW_TAG_invalid && dwarf_getattrs(die, take_attribute, out, 0) >= 0;
}

// A type that has a unit of its own is only named where it is used.
static bool read_type_unit(struct dwarf *d, struct dwarf_entry *out) {
    Dwarf_Die die;
    struct dwarf_entry type;
    if (out->elsewhere && die_at(d, out->elsewhere, &die) && read_die(&die, &type))
        *out = type;
    return true;
}

bool dw_read(struct dwarf *d, uint64_t at, struct dwarf_entry *out) {
    Dwarf_Die die;
    return die_at(d, at, &die) && read_die(&die, out) && read_type_unit(d, out);
}

bool dw_child(struct dwarf *d, const struct dwarf_entry *of, struct dwarf_entry *out) {
    Dwarf_Die die, child;
    return die_at(d, of->at, &die) && dwarf_child(&die, &child) == 0 && read_die(&child, out);
}

bool dw_sibling(struct dwarf *d, struct dwarf_entry *entry) {
    Dwarf_Die die, next;
    return die_at(d, entry->at, &die) && dwarf_siblingof(&die, &next) == 0 &&
           read_die(&next, entry);
}

// ---- the program --------------------------------------------------------------------------------

static void add_place(struct dwarf *d, Dwarf_Die *die) {
    struct dwarf_entry e;
    if (!read_die(die, &e) || !e.has_address)
        return;
    if ((d->place_count & (d->place_count - 1)) == 0) {
        size_t room = d->place_count ? 2 * d->place_count : 1;
        struct place *more = realloc(d->places, room * sizeof *more);
        if (!more)
            return;
        d->places = more;
    }
    d->places[d->place_count++] = (struct place){e.address, e.at};
}

// All variables below an entry, at whatever depth.
static void find_below(struct dwarf *d, Dwarf_Die *of, unsigned depth) {
    Dwarf_Die die;
    if (depth == 0 || dwarf_child(of, &die) != 0)
        return;
    do {
        if (dwarf_tag(&die) == DW_TAG_variable)
            add_place(d, &die);
        else
            find_below(d, &die, depth - 1);
    } while (dwarf_siblingof(&die, &die) == 0);
}

static int by_address(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

static const char *split_name(Dwarf_Die *unit) {
    Dwarf_Attribute a;
    const char *name = NULL;
    if (dwarf_attr(unit, DW_AT_dwo_name, &a) || dwarf_attr(unit, DW_AT_GNU_dwo_name, &a))
        name = dwarf_formstring(&a);
    return name ? name : "a .dwo file";
}

// What dwz has put into a third file.
static void look_for_shared(struct dwarf *d) {
    const char *name;
    const void *id;
    if (dwelf_dwarf_gnu_debugaltlink(d->of, &name, &id) > 0 && !dwarf_getalt(d->of))
        d->missing = name;
}

static void find_places(struct dwarf *d) {
    Dwarf_CU *unit = NULL;
    Dwarf_Die top, split;
    uint8_t kind;
    while (dwarf_get_units(d->of, unit, &unit, NULL, &kind, &top, &split) == 0) {
        bool apart = kind == DW_UT_skeleton && split.addr;
        if (kind == DW_UT_skeleton && !apart)
            d->missing = split_name(&top);
        if (kind != DW_UT_type && kind != DW_UT_split_type)
            find_below(d, apart ? &split : &top, NESTING_MAX);
    }
    if (d->place_count)
        qsort(d->places, d->place_count, sizeof *d->places, by_address);
}

// Whether the file has types. It stays open.
static bool open_file(struct dwarf *d, const char *path) {
    Dwarf_CU *unit = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return false;
    d->of = dwarf_begin(fd, DWARF_C_READ);
    if (d->of && dwarf_get_units(d->of, NULL, &unit, NULL, NULL, NULL, NULL) == 0)
        return true;
    dwarf_end(d->of);
    close(fd);
    return false;
}

bool dw_debug_file(const struct pm_elf *f, char *path, size_t size) {
    uint8_t id[PM_BUILD_ID_MAX];
    size_t len = pm_elf_build_id(f, id);
    char text[2 * PM_BUILD_ID_MAX + 1];
    if (len < 2)
        return false;
    pm_elf_hex(text, id, len);
    snprintf(path, size, "/usr/lib/debug/.build-id/%.2s/%s.debug", text, text + 2);
    return true;
}

struct dwarf *dw_open(const char *path, const struct pm_elf *f) {
    char apart[DWARF_PATH];
    struct dwarf *d = calloc(1, sizeof *d);
    bool found = d && open_file(d, path);
    if (d && !found)
        found = dw_debug_file(f, apart, sizeof apart) && open_file(d, apart);
    if (!found) {
        free(d);
        return NULL;
    }
    look_for_shared(d);
    find_places(d);
    return d;
}

const char *dw_missing(const struct dwarf *d) { return d->missing; }

void *dw_handle(struct dwarf *d) { return d->of; }

// ---- variables ----------------------------------------------------------------------------------

// A static member and a variable that was declared before have their type and their name there.
static bool complete(struct dwarf *d, struct dwarf_entry *e) {
    for (unsigned depth = 0; e->origin && depth < ORIGINS_MAX; depth++) {
        struct dwarf_entry origin;
        if (!dw_read(d, e->origin, &origin))
            break;
        e->type = e->type ? e->type : origin.type;
        e->name = *e->name ? e->name : origin.name;
        e->linkage = *e->linkage ? e->linkage : origin.linkage;
        e->declared = origin.at;
        e->origin = origin.origin;
    }
    return e->type != 0;
}

bool dw_variable_around(struct dwarf *d, uint64_t address, struct dwarf_entry *out) {
    size_t low = 0, high = d->place_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (d->places[middle].address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    // Those that begin at one place may differ in what is known of them.
    for (uint64_t begin = low ? d->places[low - 1].address : 0;
         low > 0 && d->places[low - 1].address == begin; low--)
        if (dw_read(d, d->places[low - 1].at, out) && complete(d, out) &&
            (address == begin || address - begin < dw_size(d, out->type)))
            return true;
    return false;
}

bool dw_variable(struct dwarf *d, uint64_t address, struct dwarf_entry *out) {
    return dw_variable_around(d, address, out) && out->address == address;
}

// Scopes of a variable, the innermost first: C++ names, and functions.
bool dw_full_name(struct dwarf *d, const struct dwarf_entry *variable, char *out, size_t size) {
    Dwarf_Die die, *scopes = NULL;
    size_t at = 0;
    bool in_function = false;
    *out = '\0';
    int count = die_at(d, variable->declared ? variable->declared : variable->at, &die)
                    ? dwarf_getscopes_die(&die, &scopes)
                    : 0;
    for (int i = count - 1; i > 0; i--) {
        int tag = dwarf_tag(&scopes[i]);
        const char *name = dwarf_diename(&scopes[i]);
        bool function = tag == DW_TAG_subprogram;
        in_function |= function;
        if (function || tag == DW_TAG_namespace || tag == DW_TAG_class_type ||
            tag == DW_TAG_structure_type || tag == DW_TAG_union_type)
            at += (size_t)snprintf(out + at, at < size ? size - at : 0,
                                   "%s%s::", name ? name : "(anonymous namespace)",
                                   function ? "()" : "");
    }
    free(scopes);
    snprintf(out + at, at < size ? size - at : 0, "%s", variable->name);
    return !in_function;
}

// Whether the last name of a scoped one is this.
static bool ends_with(const char *scoped, const char *name) {
    size_t all = strlen(scoped), end = strlen(name);
    return end && all >= end && strcmp(scoped + all - end, name) == 0 &&
           (all == end || scoped[all - end - 1] == ':');
}

unsigned dw_find(struct dwarf *d, const char *name, struct dwarf_entry *out,
                 struct dwarf_entry *second) {
    unsigned count = 0;
    for (size_t i = 0; i < d->place_count; i++) {
        struct dwarf_entry e;
        char full[DWARF_NAME];
        if (!dw_read(d, d->places[i].at, &e) || !complete(d, &e) ||
            (strcmp(e.linkage, name) != 0 &&
             !(ends_with(name, e.name) && dw_full_name(d, &e, full, sizeof full) &&
               strcmp(full, name) == 0)) ||
            (count && out->address == e.address))
            continue;
        *(count++ ? second : out) = e;
    }
    return count;
}
