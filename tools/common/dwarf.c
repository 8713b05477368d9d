// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "dwarf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the file -----------------------------------------------------------------------------------

struct section {
    const unsigned char *data;
    uint64_t size;
};

struct unit {
    uint64_t start, first, end; // of its header, of its first entry
    unsigned version, address_size, offset_size;
    uint64_t abbrevs, string_offsets, addresses;
    uint64_t *abbrev; // where each code is described, by its number; 0: not yet known
    uint64_t abbrev_count;
};

struct dwarf {
    struct section info, abbrev, str, line_str, str_offsets, addr;
    struct unit *units;
    size_t unit_count;
    struct pm_elf apart; // the debug file of a stripped program
    // Of all variables with an address, sorted by it.
    struct place {
        uint64_t address, at;
    } * places;
    size_t place_count;
};

enum { ABBREVS_MAX = 1 << 16 };

static bool section_named(const struct pm_elf *f, const char *name, struct section *out) {
    ElfW(Shdr) s, names;
    const ElfW(Ehdr) *e = &f->ehdr;
    *out = (struct section){0};
    uint64_t table = (uint64_t)e->e_shnum * sizeof s;
    if (e->e_shoff > f->size || table > f->size - e->e_shoff || e->e_shstrndx >= e->e_shnum)
        return false;
    memcpy(&names, f->map + e->e_shoff + e->e_shstrndx * sizeof s, sizeof names);
    for (unsigned i = 0; i < e->e_shnum; i++) {
        memcpy(&s, f->map + e->e_shoff + i * sizeof s, sizeof s);
        if (names.sh_offset > f->size || s.sh_name >= f->size - names.sh_offset)
            continue;
        const char *text = (const char *)f->map + names.sh_offset + s.sh_name;
        size_t room = f->size - names.sh_offset - s.sh_name, len = strlen(name) + 1;
        if (room < len || memcmp(text, name, len) != 0 || (s.sh_flags & SHF_COMPRESSED) ||
            s.sh_type == SHT_NOBITS || s.sh_offset > f->size || s.sh_size > f->size - s.sh_offset)
            continue;
        *out = (struct section){f->map + s.sh_offset, s.sh_size};
        return true;
    }
    return false;
}

static bool take_sections(struct dwarf *d, const struct pm_elf *f) {
    section_named(f, ".debug_str", &d->str);
    section_named(f, ".debug_line_str", &d->line_str);
    section_named(f, ".debug_str_offsets", &d->str_offsets);
    section_named(f, ".debug_addr", &d->addr);
    return section_named(f, ".debug_abbrev", &d->abbrev) &&
           section_named(f, ".debug_info", &d->info);
}

static bool take_apart(struct dwarf *d, const struct pm_elf *f) {
    uint8_t id[PM_BUILD_ID_MAX];
    char path[200];
    struct pm_error ignored;
    size_t len = pm_elf_build_id(f, id);
    if (len < 2)
        return false;
    int at = snprintf(path, sizeof path, "/usr/lib/debug/.build-id/%02x/", id[0]);
    for (size_t i = 1; i < len; i++)
        at += snprintf(path + at, sizeof path - (size_t)at, "%02x", id[i]);
    snprintf(path + at, sizeof path - (size_t)at, ".debug");
    return pm_elf_open(&d->apart, path, &ignored) == PM_OK && take_sections(d, &d->apart);
}

// ---- numbers ------------------------------------------------------------------------------------

// Reads at `at`, up to `end`. Past it everything is zero, and `bad` is set.
struct reader {
    const struct section *in;
    uint64_t at, end;
    bool bad;
};

static uint64_t fixed(struct reader *r, unsigned bytes) {
    uint64_t value = 0;
    if (r->bad || r->at > r->end || bytes > r->end - r->at) {
        r->bad = true;
        return 0;
    }
    memcpy(&value, r->in->data + r->at, bytes);
    r->at += bytes;
    return value;
}

static uint64_t leb(struct reader *r, bool is_signed) {
    uint64_t value = 0;
    unsigned shift = 0;
    unsigned char byte;
    do {
        byte = (unsigned char)fixed(r, 1);
        if (shift < 64)
            value |= (uint64_t)(byte & 0x7f) << shift;
        shift += 7;
    } while (byte & 0x80 && !r->bad);
    if (is_signed && shift < 64 && byte & 0x40)
        value |= ~0ull << shift;
    return value;
}

static void skip(struct reader *r, uint64_t bytes) {
    if (r->at > r->end || bytes > r->end - r->at)
        r->bad = true;
    else
        r->at += bytes;
}

static const char *string_in(const struct section *s, uint64_t at) {
    bool good = at < s->size && memchr(s->data + at, 0, s->size - at);
    return good ? (const char *)s->data + at : "";
}

static uint64_t entry_of(const struct section *s, uint64_t base, uint64_t index, unsigned size) {
    struct reader r = {s, base, s->size, false};
    if (index > s->size / size)
        return UINT64_MAX;
    skip(&r, index * size);
    uint64_t value = fixed(&r, size);
    return r.bad ? UINT64_MAX : value;
}

// ---- forms --------------------------------------------------------------------------------------

enum form_kind { FORM_NUMBER, FORM_TEXT, FORM_PLACE, FORM_ADDRESS, FORM_BYTES, FORM_OTHER };

struct value {
    enum form_kind kind;
    uint64_t number;
    const char *text;
    const unsigned char *bytes; // `number` of them
};

static void take_bytes(struct reader *r, struct value *v, uint64_t length) {
    v->kind = FORM_BYTES;
    v->number = length;
    v->bytes = r->in->data + r->at;
    skip(r, length);
}

static void take_text(const struct section *s, uint64_t at, struct value *v) {
    v->kind = FORM_TEXT;
    v->text = string_in(s, at);
}

static void take_indexed(struct dwarf *d, const struct unit *u, uint64_t index, struct value *v) {
    take_text(&d->str, entry_of(&d->str_offsets, u->string_offsets, index, u->offset_size), v);
}

static void take_address(struct dwarf *d, const struct unit *u, uint64_t index, struct value *v) {
    v->kind = FORM_ADDRESS;
    v->number = entry_of(&d->addr, u->addresses, index, u->address_size);
}

static void take_string_form(struct dwarf *d, const struct unit *u, struct reader *r, unsigned form,
                             struct value *v) {
    static const unsigned char width[] = {[0x25] = 1, [0x26] = 2, [0x27] = 3, [0x28] = 4};
    switch (form) {
    case 0x08: // string
        v->kind = FORM_TEXT;
        v->text = string_in(r->in, r->at);
        skip(r, strlen(v->text) + 1);
        break;
    case 0x0e: // strp
        take_text(&d->str, fixed(r, u->offset_size), v);
        break;
    case 0x1f: // line_strp
        take_text(&d->line_str, fixed(r, u->offset_size), v);
        break;
    case 0x1a: // strx
        take_indexed(d, u, leb(r, false), v);
        break;
    default: // strx1 to strx4
        take_indexed(d, u, fixed(r, width[form]), v);
    }
}

static void take_reference(const struct unit *u, struct reader *r, unsigned form, struct value *v) {
    static const unsigned char width[] = {[0x11] = 1, [0x12] = 2, [0x13] = 4, [0x14] = 8};
    v->kind = FORM_PLACE;
    if (form == 0x10) // ref_addr
        v->number = fixed(r, u->version == 2 ? u->address_size : u->offset_size);
    else
        v->number = u->start + (form == 0x15 ? leb(r, false) : fixed(r, width[form]));
}

static void take_number(const struct unit *u, struct reader *r, unsigned form, int64_t implicit,
                        struct value *v) {
    static const unsigned char width[] = {
        [0x05] = 2, [0x06] = 4, [0x07] = 8, [0x0b] = 1, [0x0c] = 1, [0x20] = 8};
    v->kind = form == 0x20 ? FORM_OTHER : FORM_NUMBER;
    if (form == 0x0d || form == 0x0f)
        v->number = leb(r, form == 0x0d);
    else if (form == 0x17 || form == 0x1c || form == 0x1d) // sec_offset, supplements
        v->number = fixed(r, u->offset_size);
    else if (form == 0x19)
        v->number = 1;
    else if (form == 0x21)
        v->number = (uint64_t)implicit;
    else
        v->number = fixed(r, width[form]);
}

// Numbers whose kind does not matter here, and numbers of supplementary files.
static void take_rest(const struct unit *u, struct reader *r, unsigned form, struct value *v) {
    if (form == 0x1e) // data16
        take_bytes(r, v, 16);
    else if (form == 0x22 || form == 0x23) // loclistx, rnglistx
        v->number = leb(r, false);
    else if (form == 0x1f20 || form == 0x1f21)
        v->number = fixed(r, u->offset_size);
    else
        r->bad = true; // not known, so nothing behind it can be read
}

static void take_form(struct dwarf *d, const struct unit *u, struct reader *r, unsigned form,
                      int64_t implicit, struct value *v) {
    static const unsigned char width[] = {[0x29] = 1, [0x2a] = 2, [0x2b] = 3, [0x2c] = 4};
    *v = (struct value){.kind = FORM_OTHER, .text = ""};
    if (form == 0x16) // indirect
        form = (unsigned)leb(r, false);
    switch (form) {
    case 0x01: // addr
        v->number = fixed(r, u->address_size);
        v->kind = FORM_ADDRESS;
        break;
    case 0x03:
    case 0x04:
    case 0x0a: // blocks
        take_bytes(r, v, fixed(r, form == 0x03 ? 2 : form == 0x04 ? 4 : 1));
        break;
    case 0x09:
    case 0x18: // block, exprloc
        take_bytes(r, v, leb(r, false));
        break;
    case 0x08:
    case 0x0e:
    case 0x1a:
    case 0x1f:
    case 0x25 ... 0x28:
        take_string_form(d, u, r, form, v);
        break;
    case 0x10 ... 0x15:
        take_reference(u, r, form, v);
        break;
    case 0x05 ... 0x07:
    case 0x0b ... 0x0d:
    case 0x0f:
    case 0x17:
    case 0x19:
    case 0x1c:
    case 0x1d:
    case 0x20:
    case 0x21:
        take_number(u, r, form, implicit, v);
        break;
    case 0x1b: // addrx
        take_address(d, u, leb(r, false), v);
        break;
    case 0x29 ... 0x2c:
        take_address(d, u, fixed(r, width[form]), v);
        break;
    default:
        take_rest(u, r, form, v);
    }
}

// ---- entries ------------------------------------------------------------------------------------

// Passes over one description; *code is its number, 0 at the end of the table.
static bool next_abbrev(struct reader *r, uint64_t *code) {
    *code = leb(r, false);
    if (r->bad || *code == 0)
        return false;
    leb(r, false);
    fixed(r, 1);
    for (uint64_t name = 1, form = 1; (name || form) && !r->bad;) {
        name = leb(r, false);
        form = leb(r, false);
        if (form == 0x21)
            leb(r, true);
    }
    return !r->bad;
}

static void learn_abbrevs(struct dwarf *d, struct unit *u) {
    struct reader r = {&d->abbrev, u->abbrevs, d->abbrev.size, false};
    uint64_t code, at = r.at;
    u->abbrev = calloc(ABBREVS_MAX, sizeof *u->abbrev);
    u->abbrev_count = u->abbrev ? ABBREVS_MAX : 0;
    for (; u->abbrev && next_abbrev(&r, &code); at = r.at)
        if (code < ABBREVS_MAX)
            u->abbrev[code] = at + 1;
}

static struct unit *unit_of(struct dwarf *d, uint64_t at) {
    size_t low = 0, high = d->unit_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (at >= d->units[middle].end)
            low = middle + 1;
        else
            high = middle;
    }
    return low < d->unit_count && at >= d->units[low].first ? &d->units[low] : NULL;
}

static void take_location(struct dwarf *d, const struct unit *u, const struct value *v,
                          struct dwarf_entry *out) {
    struct section bytes = {v->bytes, v->number};
    struct reader r = {&bytes, 0, bytes.size, v->kind != FORM_BYTES};
    unsigned op = (unsigned)fixed(&r, 1);
    if (r.bad)
        return;
    if (op == 0x03) // addr
        out->address = fixed(&r, u->address_size);
    else if (op == 0xa1) // addrx
        out->address = entry_of(&d->addr, u->addresses, leb(&r, false), u->address_size);
    else
        return;
    out->has_address = !r.bad && r.at == r.end && out->address != UINT64_MAX;
}

static void take_member_at(const struct value *v, struct dwarf_entry *out) {
    struct section bytes = {v->bytes, v->number};
    struct reader r = {&bytes, 1, bytes.size, false};
    if (v->kind == FORM_NUMBER)
        out->member_at = v->number;
    else if (v->kind == FORM_BYTES && v->number > 1 && v->bytes[0] == 0x23) // plus_uconst
        out->member_at = leb(&r, false);
}

// Numbers.
static void take_figure(unsigned name, const struct value *v, struct dwarf_entry *out) {
    switch (v->kind == FORM_NUMBER ? name : 0) {
    case 0x0b: // byte_size
        out->size = v->number;
        out->has_size = true;
        break;
    case 0x0c: // bit_offset
        out->bit_offset = v->number;
        out->from_top = true;
        break;
    case 0x0d:
        out->bit_size = v->number;
        break;
    case 0x1c: // const_value
        out->value = (int64_t)v->number;
        break;
    case 0x2f: // upper_bound
        out->count = v->number + 1;
        break;
    case 0x37:
        out->count = v->number;
        break;
    case 0x3c:
        out->declaration = true;
        break;
    case 0x3e:
        out->encoding = v->number;
        break;
    case 0x3f: // external: a member that has it is no part of the object
        out->is_static = true;
        break;
    case 0x6b: // data_bit_offset
        out->bit_offset = v->number;
        break;
    default:
        break;
    }
}

static void take_attribute(struct dwarf *d, struct unit *u, unsigned name, const struct value *v,
                           struct dwarf_entry *out) {
    uint64_t place = v->kind == FORM_PLACE ? v->number : 0;
    const char *text = v->kind == FORM_TEXT ? v->text : "";
    switch (name) {
    case 0x01: // sibling
        out->sibling = place;
        break;
    case 0x02: // location
        take_location(d, u, v, out);
        break;
    case 0x03:
        out->name = text;
        break;
    case 0x31:
    case 0x47: // abstract_origin, specification
        out->origin = place;
        break;
    case 0x38:
        take_member_at(v, out);
        break;
    case 0x49:
        out->type = place;
        break;
    case 0x6e:
        out->linkage = text;
        break;
    case 0x72:
        u->string_offsets = v->number;
        break;
    case 0x73:
        u->addresses = v->number;
        break;
    default:
        take_figure(name, v, out);
    }
}

bool dwarf_read(struct dwarf *d, uint64_t at, struct dwarf_entry *out) {
    struct unit *u = unit_of(d, at);
    *out = (struct dwarf_entry){.at = at, .name = "", .linkage = "", .count = UINT64_MAX};
    if (!u)
        return false;
    if (!u->abbrev)
        learn_abbrevs(d, u);
    struct reader r = {&d->info, at, u->end, false};
    uint64_t code = leb(&r, false);
    out->next = r.at;
    if (r.bad || code == 0 || code >= u->abbrev_count || u->abbrev[code] == 0)
        return false;
    struct reader a = {&d->abbrev, u->abbrev[code] - 1, d->abbrev.size, false};
    leb(&a, false);
    out->tag = (uint32_t)leb(&a, false);
    out->children = fixed(&a, 1) != 0;
    for (;;) {
        unsigned name = (unsigned)leb(&a, false), form = (unsigned)leb(&a, false);
        int64_t implicit = form == 0x21 ? (int64_t)leb(&a, true) : 0;
        struct value v;
        if ((name == 0 && form == 0) || a.bad)
            break;
        take_form(d, u, &r, form, implicit, &v);
        if (r.bad)
            return false;
        take_attribute(d, u, name, &v, out);
    }
    out->next = r.at;
    return !a.bad && !r.bad;
}

// Goes behind all that lies below an entry. UINT64_MAX: it cannot be read.
static uint64_t behind(struct dwarf *d, const struct dwarf_entry *of) {
    struct unit *u = unit_of(d, of->at);
    if (!of->children)
        return of->next;
    if (of->sibling > of->at)
        return of->sibling;
    uint64_t at = of->next;
    for (unsigned depth = 1; depth > 0 && u && at < u->end;) {
        struct dwarf_entry e;
        if (d->info.data[at] == 0) {
            depth--;
            at++;
        } else if (!dwarf_read(d, at, &e)) {
            return UINT64_MAX;
        } else if (e.children && e.sibling > e.at) {
            at = e.sibling;
        } else {
            depth += e.children;
            at = e.next;
        }
    }
    return at;
}

bool dwarf_child(struct dwarf *d, const struct dwarf_entry *of, struct dwarf_entry *out) {
    uint64_t at = of->next;
    return of->children && at < d->info.size && d->info.data[at] != 0 && dwarf_read(d, at, out);
}

bool dwarf_sibling(struct dwarf *d, struct dwarf_entry *entry) {
    uint64_t at = behind(d, entry);
    return at < d->info.size && d->info.data[at] != 0 && dwarf_read(d, at, entry);
}

// ---- the program --------------------------------------------------------------------------------

static bool add_unit(struct dwarf *d, struct reader *r) {
    struct unit u = {.start = r->at, .offset_size = 4};
    uint64_t length = fixed(r, 4);
    if (length == 0xffffffff) {
        length = fixed(r, 8);
        u.offset_size = 8;
    }
    if (r->bad || length > r->end - r->at)
        return false;
    u.end = r->at + length;
    u.version = (unsigned)fixed(r, 2);
    unsigned kind = u.version >= 5 ? (unsigned)fixed(r, 1) : 1;
    if (u.version >= 5)
        u.address_size = (unsigned)fixed(r, 1);
    u.abbrevs = fixed(r, u.offset_size);
    if (u.version < 5)
        u.address_size = (unsigned)fixed(r, 1);
    u.first = r->at;
    u.string_offsets = 2 * u.offset_size; // behind the headers of their sections
    u.addresses = u.offset_size + 4;
    r->at = u.end;
    bool known = u.version >= 2 && u.version <= 5 && (kind == 1 || kind == 3) &&
                 u.address_size == sizeof(uint64_t);
    struct unit *more = known ? realloc(d->units, (d->unit_count + 1) * sizeof u) : d->units;
    if (known && more) {
        d->units = more;
        d->units[d->unit_count++] = u;
    }
    return !r->bad && more;
}

static void add_place(struct dwarf *d, const struct dwarf_entry *e) {
    if ((d->place_count & (d->place_count - 1)) == 0) {
        size_t room = d->place_count ? 2 * d->place_count : 1;
        struct place *more = realloc(d->places, room * sizeof *more);
        if (!more)
            return;
        d->places = more;
    }
    d->places[d->place_count++] = (struct place){e->address, e->at};
}

static int by_address(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address;
}

// Reads all entries of all units once, at whatever depth.
static void find_places(struct dwarf *d) {
    for (size_t i = 0; i < d->unit_count; i++)
        for (uint64_t at = d->units[i].first; at < d->units[i].end;) {
            struct dwarf_entry e;
            if (d->info.data[at] == 0) {
                at++;
                continue;
            }
            if (!dwarf_read(d, at, &e))
                break;
            if (e.tag == DW_VARIABLE && e.has_address)
                add_place(d, &e);
            at = e.next;
        }
    qsort(d->places, d->place_count, sizeof *d->places, by_address);
}

struct dwarf *dwarf_open(const struct pm_elf *f) {
    struct dwarf *d = calloc(1, sizeof *d);
    if (!d || !(take_sections(d, f) || take_apart(d, f))) {
        free(d);
        return NULL;
    }
    struct reader r = {&d->info, 0, d->info.size, false};
    while (r.at < r.end && add_unit(d, &r)) {
    }
    find_places(d);
    return d;
}

bool dwarf_variable(struct dwarf *d, uint64_t address, struct dwarf_entry *out) {
    struct place key = {address, 0};
    struct place *found =
        d->place_count ? bsearch(&key, d->places, d->place_count, sizeof key, by_address) : NULL;
    if (!found || !dwarf_read(d, found->at, out))
        return false;
    // A static member and a variable that was declared before have their type there.
    for (unsigned depth = 0; !out->type && out->origin && depth < 4; depth++) {
        struct dwarf_entry origin;
        if (!dwarf_read(d, out->origin, &origin))
            return false;
        out->type = origin.type;
        out->origin = origin.origin;
    }
    return out->type != 0;
}
