// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What debug_info.h says of types.
#include <stdio.h>
#include <string.h>

#include "debug_info.h"

enum { DEPTH_MAX = 32, WIDTH_MAX = 200 };

static bool is_qualifier(uint32_t tag) {
    return tag == DW_TYPEDEF || tag == DW_CONST || tag == DW_VOLATILE || tag == DW_RESTRICT ||
           tag == DW_ATOMIC;
}

bool dw_strip(struct dwarf *d, uint64_t type, struct dwarf_entry *out) {
    for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
        if (!type || !dw_read(d, type, out))
            return false;
        if (!is_qualifier(out->tag))
            return true;
        type = out->type;
    }
    return false;
}

// The elements of all its dimensions.
static uint64_t elements(struct dwarf *d, const struct dwarf_entry *array) {
    struct dwarf_entry e;
    uint64_t count = 1;
    bool more = dw_child(d, array, &e);
    for (; more; more = dw_sibling(d, &e))
        if (e.tag == DW_SUBRANGE &&
            (e.count == UINT64_MAX || __builtin_mul_overflow(count, e.count, &count)))
            return 0;
    return count;
}

uint64_t dw_size(struct dwarf *d, uint64_t type) {
    struct dwarf_entry e;
    uint64_t count = 1;
    for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
        if (!dw_strip(d, type, &e))
            return 0;
        if (e.has_size || e.tag != DW_ARRAY) {
            uint64_t one = e.has_size                                     ? e.size
                           : e.tag == DW_POINTER || e.tag == DW_REFERENCE ? sizeof(void *)
                                                                          : 0;
            return __builtin_mul_overflow(one, count, &count) ? 0 : count;
        }
        if (__builtin_mul_overflow(count, elements(d, &e), &count))
            return 0;
        type = e.type;
    }
    return 0;
}

bool dw_dimension(struct dwarf *d, const struct dwarf_entry *array, unsigned dimension,
                  uint64_t *count, uint64_t *stride) {
    struct dwarf_entry e;
    unsigned number = 0;
    *stride = dw_size(d, array->type);
    for (bool more = dw_child(d, array, &e); more; more = dw_sibling(d, &e)) {
        if (e.tag != DW_SUBRANGE)
            continue;
        if (number == dimension)
            *count = e.count;
        else if (number > dimension &&
                 (e.count == UINT64_MAX || __builtin_mul_overflow(*stride, e.count, stride)))
            return false;
        number++;
    }
    return number > dimension && *stride != 0;
}

static const char *keyword(uint32_t tag) {
    return tag == DW_STRUCT        ? "struct "
           : tag == DW_UNION       ? "union "
           : tag == DW_ENUMERATION ? "enum "
                                   : "";
}

void dw_name(struct dwarf *d, uint64_t type, char *out, size_t size) {
    struct dwarf_entry e = {0};
    char stars[8] = "", dimension[32] = "";
    bool found = true;
    for (unsigned depth = 0; depth < DEPTH_MAX; depth++) {
        found = type && dw_read(d, type, &e);
        if (!found)
            break;
        bool pointer = e.tag == DW_POINTER || e.tag == DW_REFERENCE || e.tag == DW_RVALUE_REFERENCE;
        if (pointer && strlen(stars) + 1 < sizeof stars) {
            strcat(stars, e.tag == DW_POINTER ? "*" : "&");
        } else if (e.tag == DW_ARRAY && !*dimension) {
            snprintf(dimension, sizeof dimension, "[%lu]", (unsigned long)elements(d, &e));
        } else if (!(e.tag == DW_CONST || e.tag == DW_VOLATILE || e.tag == DW_RESTRICT ||
                     e.tag == DW_ATOMIC || pointer)) {
            break;
        }
        type = e.type;
    }
    const char *name = !found                      ? "void"
                       : e.tag == DW_FUNCTION_TYPE ? "function"
                       : *e.name                   ? e.name
                                                   : "{...}";
    snprintf(out, size, "%s%s%s%s%s", found ? keyword(e.tag) : "", name, *stars ? " " : "", stars,
             dimension);
}

static bool points(struct dwarf *d, uint64_t type, unsigned depth) {
    struct dwarf_entry e, member;
    if (depth == 0 || !dw_strip(d, type, &e))
        return false;
    if (e.tag == DW_POINTER) {
        struct dwarf_entry to;
        return !dw_strip(d, e.type, &to) || to.tag != DW_FUNCTION_TYPE;
    }
    if (e.tag == DW_ARRAY)
        return points(d, e.type, depth - 1);
    if (e.tag != DW_STRUCT && e.tag != DW_CLASS && e.tag != DW_UNION)
        return false;
    bool more = dw_child(d, &e, &member);
    for (unsigned width = 0; more && width < WIDTH_MAX; more = dw_sibling(d, &member), width++)
        if ((member.tag == DW_INHERITANCE || (member.tag == DW_MEMBER && !member.is_static)) &&
            points(d, member.type, depth - 1))
            return true;
    return false;
}

bool dw_points(struct dwarf *d, uint64_t type) { return points(d, type, 8); }
