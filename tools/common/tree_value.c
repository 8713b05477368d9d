// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "tree_value.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "media/heap.h"
#include "recovery/block_around.h"
#include "roots/root_media.h"

enum { TEXT_MAX = TREE_TEXT_MAX, NESTING = 64, VALUES_MAX = 1000000, PLACES = TREE_PLACES };

// ---- memory of the program ----------------------------------------------------------------------

// A root that was dropped lies where its variable has other bytes now: it alone has its own.
static const void *in_roots(const struct tree *t, uint64_t at, uint64_t len) {
    for (uint32_t i = 0; t->images && i < t->table->count; i++) {
        const struct pm_root *r = &t->table->root[i];
        bool others = pm_root_is_dropped(r) || t->dropped;
        if (others && strcmp(r->object, t->object) != 0)
            continue;
        if (at - r->address < r->length && len <= r->length - (at - r->address))
            return t->images + (r->image - t->table->area_offset) + (at - r->address);
    }
    return NULL;
}

static const void *in_program(const struct tree *t, uint64_t at, uint64_t len) {
    ElfW(Phdr) p;
    for (size_t i = 0; pm_elf_phdr(&t->program, i, &p); i++) {
        uint64_t into = at - t->base - p.p_vaddr;
        if (p.p_type == PT_LOAD && !(p.p_flags & PF_W) && into < p.p_filesz &&
            len <= p.p_filesz - into && p.p_offset <= t->program.size &&
            into + len <= t->program.size - p.p_offset)
            return t->program.map + p.p_offset + into;
    }
    return NULL;
}

// How many bytes there are from an address of the heap on: to the end of its block.
uint64_t tree_rest_of_block(uint64_t at) {
    uint64_t offset = at - pm_base;
    struct pm_block block;
    if (offset >= pm_range || !pm_block_around(offset, false, &block))
        return 0;
    return block.size - (offset - block.start);
}

// The bytes that the program had there, or NULL.
const void *tree_bytes(const struct tree *t, uint64_t at, uint64_t len) {
    if (at - pm_base < pm_range)
        return len <= tree_rest_of_block(at) ? (const void *)(uintptr_t)at : NULL;
    const void *found = in_roots(t, at, len);
    return found ? found : in_program(t, at, len);
}

// Whether this place was met before, as a value of this type.
static bool met(struct tree *t, uint64_t at, uint64_t type) {
    uint64_t key = at * 0x9e3779b97f4a7c15u ^ type;
    for (uint64_t i = key * 0x9e3779b97f4a7c15u >> 44;; i = (i + 1) % PLACES) {
        if (t->seen[i] == key)
            return true;
        if (t->seen[i])
            continue;
        if (++t->seen_count < PLACES / 2)
            t->seen[i] = key;
        return t->seen_count >= PLACES / 2;
    }
}

// ---- values -------------------------------------------------------------------------------------

static uint64_t number_of(const void *bytes, uint64_t size) {
    uint64_t number = 0;
    memcpy(&number, bytes, size < sizeof number ? size : sizeof number);
    return number;
}

static int64_t widen(uint64_t number, uint64_t bits) {
    return bits && bits < 64 ? (int64_t)(number << (64 - bits)) >> (64 - bits) : (int64_t)number;
}

static void real(struct tree *t, const char *key, const void *bytes, uint64_t size) {
    float small;
    double number = 0;
    if (size == sizeof small) {
        memcpy(&small, bytes, sizeof small);
        number = (double)small;
    } else if (size == sizeof number) {
        memcpy(&number, bytes, sizeof number);
    }
    bool finite = number - number == 0;
    tree_word(t, key, finite && size <= sizeof number, "%.17g", number);
}

enum { ENCODING_BOOL = 2, ENCODING_FLOAT = 4, ENCODING_SIGNED = 5, ENCODING_CHAR = 6 };

static void base(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t number,
                 uint64_t bits) {
    if (e->encoding == ENCODING_BOOL)
        tree_word(t, key, true, "%s", number ? "true" : "false");
    else if (e->encoding == ENCODING_SIGNED || e->encoding == ENCODING_CHAR)
        tree_word(t, key, true, "%ld", (long)widen(number, bits));
    else
        tree_word(t, key, true, "%lu", (unsigned long)number);
}

static void enumeration(struct tree *t, const char *key, const struct dwarf_entry *e,
                        uint64_t number, uint64_t bits) {
    struct dwarf_entry one;
    for (bool more = dw_child(t->types, e, &one); more; more = dw_sibling(t->types, &one))
        if (one.tag == DW_ENUMERATOR && widen((uint64_t)one.value, bits) == widen(number, bits)) {
            tree_word(t, key, false, "%s", one.name);
            return;
        }
    tree_word(t, key, true, "%ld", (long)widen(number, bits));
}

static bool is_char(struct tree *t, uint64_t type) {
    struct dwarf_entry e;
    return dw_strip(t->types, type, &e) && e.tag == DW_BASE && e.size == 1 &&
           (e.encoding == ENCODING_CHAR || e.encoding == 8);
}

// Text up to a NUL, if all of it is text. False: it is not.
static bool text(struct tree *t, const char *key, const char *bytes, uint64_t room) {
    static char copy[TEXT_MAX + 4];
    uint64_t len = strnlen(bytes, room < TEXT_MAX ? room : TEXT_MAX);
    for (uint64_t i = 0; i < len; i++)
        if ((unsigned char)bytes[i] < ' ' && !isspace((unsigned char)bytes[i]))
            return false;
    bool cut = len == TEXT_MAX || len == room;
    memcpy(copy, bytes, len);
    memcpy(copy + len, cut && len == TEXT_MAX ? "..." : "", cut && len == TEXT_MAX ? 4 : 1);
    tree_text(t, key, copy);
    return true;
}

void tree_pointer(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t to,
                  unsigned depth, unsigned links) {
    uint64_t clean = to & ((1ull << 48) - 1), room = tree_rest_of_block(clean);
    struct dwarf_entry target;
    bool known = dw_strip(t->types, e->type, &target);
    uint64_t size = known ? dw_size(t->types, e->type) : 0;
    const void *bytes = size ? tree_bytes(t, clean, size) : NULL;
    if (to == 0) {
        tree_word(t, key, false, "NULL");
    } else if (known && is_char(t, e->type) && bytes &&
               text(t, key, bytes, room ? room : TEXT_MAX / 16)) {
    } else if (!bytes || target.tag == DW_FUNCTION_TYPE) {
        tree_word(t, key, false, "%#lx", (unsigned long)to);
    } else if (depth == 0 || links == 0 || t->nesting >= NESTING + t->width) {
        tree_word(t, key, false, "%#lx, not followed", (unsigned long)to);
    } else if (met(t, clean, target.at)) {
        tree_word(t, key, false, "%#lx, met before", (unsigned long)to);
    } else {
        tree_value(t, key, e->type, clean, bytes, depth - 1, links);
    }
}

static bool is_zero(const char *bytes, uint64_t size) {
    for (uint64_t i = 0; i < size; i++)
        if (bytes[i])
            return false;
    return true;
}

// Elements that are zero are left out. An array without a length goes to the end of its block.
static void array(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t at,
                  const char *bytes, unsigned depth) {
    uint64_t one = dw_size(t->types, e->type), all = dw_size(t->types, e->at), count = 0;
    char index[40];
    if (all == 0)
        all = tree_rest_of_block(at);
    if (is_char(t, e->type) && all && text(t, key, bytes, all))
        return;
    tree_open(t, key, '{');
    for (uint64_t i = 0; one && i < all / one; i++) {
        const char *element = bytes + i * one;
        if (is_zero(element, one))
            continue;
        snprintf(index, sizeof index, "[%lu]", (unsigned long)i);
        if (count++ == t->width) {
            tree_word(t, "...", false, "more");
            break;
        }
        tree_value(t, index, e->type, at + i * one, element, depth, t->width);
    }
    tree_close(t, '}');
}

static void member(struct tree *t, const struct dwarf_entry *of, const struct dwarf_entry *m,
                   uint64_t at, const char *bytes, unsigned depth, unsigned links) {
    struct dwarf_entry e, to;
    if (!dw_strip(t->types, m->type, &e))
        return;
    const char *name = *m->name ? m->name : *e.name ? e.name : "(unnamed)";
    uint64_t size = dw_size(t->types, m->type), bit = m->member_at * 8 + m->bit_offset;
    if (m->from_top)
        bit = m->member_at * 8 + (m->has_size ? m->size : size) * 8 - m->bit_offset - m->bit_size;
    if (m->member_at > of->size || size > of->size - m->member_at || bit / 8 > of->size)
        return; // what does not fit was not written by a compiler
    if (m->bit_size) {
        uint64_t word = number_of(bytes + bit / 64 * 8, of->size - bit / 64 * 8) >> bit % 64;
        word &= m->bit_size < 64 ? (1ull << m->bit_size) - 1 : UINT64_MAX;
        (e.tag == DW_ENUMERATION ? enumeration : base)(t, name, &e, word, m->bit_size);
        return;
    }
    // A pointer to the same type is a link of a list or tree.
    bool link = e.tag == DW_POINTER && dw_strip(t->types, e.type, &to) && to.at == of->at;
    tree_value(t, name, m->type, at + m->member_at, bytes + m->member_at, link ? depth + 1 : depth,
               link ? links - 1 : t->width);
}

// Bases without members say nothing.
static bool is_empty(struct tree *t, uint64_t type, unsigned depth) {
    struct dwarf_entry e, m;
    if (depth == 0 || !dw_strip(t->types, type, &e))
        return false;
    for (bool more = dw_child(t->types, &e, &m); more; more = dw_sibling(t->types, &m))
        if ((m.tag == DW_MEMBER && !m.is_static) ||
            (m.tag == DW_INHERITANCE && !is_empty(t, m.type, depth - 1)))
            return false;
    return true;
}

static void structure(struct tree *t, const char *key, const struct dwarf_entry *e, uint64_t at,
                      const char *bytes, unsigned depth, unsigned links) {
    struct dwarf_entry m;
    tree_open(t, key, '{');
    for (bool more = dw_child(t->types, e, &m); more; more = dw_sibling(t->types, &m))
        if ((m.tag == DW_MEMBER && !m.is_static) ||
            (m.tag == DW_INHERITANCE && !is_empty(t, m.type, NESTING)))
            member(t, e, &m, at, bytes, depth, links);
    tree_close(t, '}');
}

// `bytes` has all that the type says. `depth`: how many pointers are followed below.
void tree_value(struct tree *t, const char *key, uint64_t type, uint64_t at, const void *bytes,
                unsigned depth, unsigned links) {
    struct dwarf_entry e;
    if (!dw_strip(t->types, type, &e) || ++t->values > VALUES_MAX)
        return;
    if (++t->nesting > NESTING + t->width) {
        tree_word(t, key, false, "...");
    } else if (e.tag == DW_BASE && e.encoding == ENCODING_FLOAT) {
        real(t, key, bytes, e.size);
    } else if (e.tag == DW_BASE) {
        base(t, key, &e, number_of(bytes, e.size), 8 * e.size);
    } else if (e.tag == DW_ENUMERATION) {
        enumeration(t, key, &e, number_of(bytes, e.size), 8 * e.size);
    } else if (e.tag == DW_POINTER || e.tag == DW_REFERENCE) {
        tree_pointer(t, key, &e, number_of(bytes, sizeof(void *)), depth, links);
    } else if (e.tag == DW_ARRAY) {
        array(t, key, &e, at, bytes, depth);
    } else if (e.declaration) {
        tree_word(t, key, false, "(type is not known here)");
    } else if (!tree_std(t, key, &e, at, bytes, depth)) {
        structure(t, key, &e, at, bytes, depth, links);
    }
    t->nesting--;
}
