// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A table of types (media/types_format.h) in memory: one that was read and checked, or one that is
// being made.
#ifndef PM_TOOLS_TYPE_TABLE_H
#define PM_TOOLS_TYPE_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "media/types_format.h"

struct type_table {
    struct pm_types_head head; // its counts are those of the arrays
    struct pm_types_root *root;
    struct pm_types_type *type;
    struct pm_types_member *member;
    char *text;
    bool failed; // no memory
};

// What a program is told by: its build id, or a checksum of all of it.
struct type_build {
    uint32_t len; // 0: it is a checksum
    uint8_t id[PM_BUILD_ID_MAX];
};

// The file's bytes. On success the table leads into them. False: they are no whole table.
bool type_table_take(struct type_table *t, void *bytes, size_t size);
// All of it as bytes for a file, from malloc(). NULL: no memory.
void *type_table_bytes(struct type_table *t, size_t *size);
bool type_table_is_of(const struct type_table *t, const struct type_build *build);
static inline const char *type_text(const struct type_table *t, uint32_t at) {
    return t->text + at;
}
// The root of this name; NULL: there is none.
const struct pm_types_root *type_table_root(const struct type_table *t, const char *text);

// ---- making it ----
// Each returns where the new one is, and sets t->failed if there is no memory.
uint32_t type_table_add_text(struct type_table *t, const char *text);
uint32_t type_table_add_root(struct type_table *t, const struct pm_types_root *root);
uint32_t type_table_add_type(struct type_table *t, const struct pm_types_type *type);
uint32_t type_table_add_member(struct type_table *t, const struct pm_types_member *member);

// ---- how people call it ----
// "struct order *", "double [4]".
void type_name(const struct type_table *t, uint32_t type, char *out, size_t size);
// "a number with a decimal point, 8 bytes": what is compared of it.
void type_kind_text(const struct type_table *t, uint32_t type, char *out, size_t size);
// Why the walk ends at a type; NULL: it does not.
const char *type_end(const struct type_table *t, uint32_t type);

#endif
