// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "member_name.h"

#include <stdio.h>
#include <string.h>

enum { DEPTH = 32, GAP_MAX = 16, STEPS_MAX = 4096 };

enum how { INNERMOST, FITS, EXACT };

struct look {
    struct dwarf *d;
    enum how how;
    uint64_t length;
    char *out;
    struct member *found;
};

static void append(char *out, const char *text) {
    size_t used = strlen(out);
    snprintf(out + used, MEMBER_NAME - used, "%s", text);
}

static bool take(struct look *l, uint64_t type, uint64_t size, uint64_t into) {
    bool good = l->how == INNERMOST ? into < size
                                    : into == 0 && size != 0 &&
                                          (l->how == EXACT ? size == l->length : size <= l->length);
    if (good)
        *l->found = (struct member){.offset = into, .size = size, .type = type};
    return good;
}

static bool look_at(struct look *l, uint64_t type, uint64_t offset, unsigned depth);

static bool look_in_array(struct look *l, const struct dwarf_entry *e, uint64_t offset,
                          unsigned depth) {
    size_t used = strlen(l->out);
    uint64_t count, stride;
    char index[32];
    for (unsigned i = 0; dw_dimension(l->d, e, i, &count, &stride); i++) {
        snprintf(index, sizeof index, "[%lu]", (unsigned long)(offset / stride));
        append(l->out, index);
        offset %= stride;
        if (l->how != INNERMOST && take(l, e->type, stride, offset))
            return true;
    }
    if (look_at(l, e->type, offset, depth - 1))
        return true;
    l->out[used] = '\0';
    return false;
}

static bool look_in_struct(struct look *l, const struct dwarf_entry *e, uint64_t offset,
                           unsigned depth) {
    struct dwarf_entry m;
    size_t used = strlen(l->out);
    for (bool more = dw_child(l->d, e, &m); more; more = dw_sibling(l->d, &m)) {
        uint64_t into = offset - m.member_at, size = dw_size(l->d, m.type);
        bool named = m.tag == DW_MEMBER && *m.name;
        if ((m.tag != DW_MEMBER && m.tag != DW_INHERITANCE) || m.is_static || m.moves ||
            into >= size)
            continue;
        if (named) {
            append(l->out, ".");
            append(l->out, m.name);
        }
        if ((named && !m.bit_size && l->how != INNERMOST && take(l, m.type, size, into)) ||
            look_at(l, m.type, into, depth - 1))
            return true;
        l->out[used] = '\0';
    }
    return false;
}

// What lies at the offset of something, which may be a part of it.
static bool look_at(struct look *l, uint64_t type, uint64_t offset, unsigned depth) {
    struct dwarf_entry e;
    if (depth == 0 || !dw_strip(l->d, type, &e))
        return false;
    if (e.tag == DW_ARRAY)
        return look_in_array(l, &e, offset, depth);
    if ((e.tag == DW_STRUCT || e.tag == DW_CLASS || e.tag == DW_UNION) && !e.declaration)
        return look_in_struct(l, &e, offset, depth);
    return l->how == INNERMOST && take(l, type, dw_size(l->d, type), offset);
}

bool member_at(struct dwarf *d, uint64_t type, uint64_t offset, char *out, struct member *member) {
    struct look l = {.d = d, .how = INNERMOST, .out = out, .found = member};
    return look_at(&l, type, offset, DEPTH);
}

bool member_begins(struct dwarf *d, uint64_t type, uint64_t offset, uint64_t length, char *out,
                   struct member *member) {
    struct look l = {.d = d, .length = length, .out = out, .found = member};
    for (l.how = EXACT; l.how >= FITS; l.how--)
        if (look_at(&l, type, offset, DEPTH))
            return true;
    return false;
}

bool member_range(struct dwarf *d, uint64_t type, const char *variable, uint64_t offset,
                  uint64_t length, char *out) {
    char first[MEMBER_NAME] = "", last[MEMBER_NAME] = "";
    struct member m;
    uint64_t gap = 0, steps = 0;
    if (offset != 0 || length != dw_size(d, type))
        for (uint64_t at = 0; at < length;) {
            char name[MEMBER_NAME] = "";
            if (steps++ == STEPS_MAX)
                return false;
            if (member_begins(d, type, offset + at, length - at, name, &m)) {
                memcpy(at == 0 ? first : last, name, sizeof name);
                at += m.size;
                gap = 0;
            } else if (at == 0 || ++gap == GAP_MAX) {
                return false;
            } else {
                at++; // between two members
            }
        }
    append(out, variable);
    append(out, first);
    if (*last) {
        append(out, " to ");
        append(out, variable);
        append(out, last);
    }
    return true;
}
