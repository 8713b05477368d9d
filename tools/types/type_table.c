// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "type_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"

// ---- a file -------------------------------------------------------------------------------------

static bool head_is_whole(const struct pm_types_head *h, const void *bytes, size_t size) {
    uint64_t want = sizeof *h + h->roots * (uint64_t)sizeof(struct pm_types_root) +
                    h->types * (uint64_t)sizeof(struct pm_types_type) +
                    h->members * (uint64_t)sizeof(struct pm_types_member) + h->text;
    return h->magic == PM_TYPES_MAGIC && h->version == PM_TYPES_VERSION &&
           h->crc == pm_crc32c(0, h, offsetof(struct pm_types_head, crc)) && h->bytes == size &&
           want == size && h->roots <= PM_ROOT_MAX + 1 && h->types <= PM_TYPES_MOST + 1 &&
           h->members <= PM_TYPES_MEMBERS_MOST && h->text && h->text <= PM_TYPES_TEXT_MOST &&
           h->missing < h->text && h->build_id_len <= PM_BUILD_ID_MAX &&
           h->body_crc == pm_crc32c(0, (const char *)bytes + sizeof *h, size - sizeof *h);
}

static bool type_is_whole(const struct pm_types_head *h, const struct pm_types_type *t) {
    bool leads = t->kind == PM_TYPES_POINTER || t->kind == PM_TYPES_ARRAY;
    return t->kind >= PM_TYPES_INTEGER && t->kind < PM_TYPES_KINDS && t->name < h->text &&
           (!leads || t->to < h->types) && t->first <= h->members &&
           t->members <= h->members - t->first && (t->kind == PM_TYPES_STRUCT || !t->members);
}

// A checksum can be forged with what it is of. So no number is trusted.
static bool body_is_whole(const struct type_table *t) {
    const struct pm_types_head *h = &t->head;
    for (uint32_t i = 0; i < h->roots; i++) {
        const struct pm_types_root *r = &t->root[i];
        if (r->text >= h->text || r->variable >= h->text || r->is > PM_TYPES_ROOT_UNKNOWN ||
            (r->is == PM_TYPES_ROOT_TYPED && r->type >= h->types))
            return false;
    }
    for (uint32_t i = 0; i < h->types; i++)
        if (!type_is_whole(h, &t->type[i]))
            return false;
    for (uint32_t i = 0; i < h->members; i++) {
        const struct pm_types_member *m = &t->member[i];
        if (m->name >= h->text || m->type >= h->types || m->is > PM_TYPES_DERIVED)
            return false;
    }
    return t->text[h->text - 1] == '\0';
}

bool type_table_take(struct type_table *t, void *bytes, size_t size) {
    *t = (struct type_table){0};
    if (size < sizeof t->head)
        return false;
    memcpy(&t->head, bytes, sizeof t->head);
    if (!head_is_whole(&t->head, bytes, size))
        return false;
    t->root = (void *)((char *)bytes + sizeof t->head);
    t->type = (void *)(t->root + t->head.roots);
    t->member = (void *)(t->type + t->head.types);
    t->text = (char *)(t->member + t->head.members);
    return body_is_whole(t);
}

void *type_table_bytes(struct type_table *t, size_t *size) {
    size_t roots = t->head.roots * sizeof *t->root, types = t->head.types * sizeof *t->type,
           members = t->head.members * sizeof *t->member;
    *size = sizeof t->head + roots + types + members + t->head.text;
    char *bytes = t->failed ? NULL : malloc(*size), *at = bytes;
    if (!bytes)
        return NULL;
    at += sizeof t->head;
    const struct {
        const void *from;
        size_t size;
    } part[] = {{t->root, roots}, {t->type, types}, {t->member, members}, {t->text, t->head.text}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        if (part[i].size)
            memcpy(at, part[i].from, part[i].size);
        at += part[i].size;
    }
    t->head.magic = PM_TYPES_MAGIC;
    t->head.version = PM_TYPES_VERSION;
    t->head.bytes = *size;
    t->head.body_crc = pm_crc32c(0, bytes + sizeof t->head, *size - sizeof t->head);
    t->head.crc = pm_crc32c(0, &t->head, offsetof(struct pm_types_head, crc));
    memcpy(bytes, &t->head, sizeof t->head);
    return bytes;
}

bool type_table_is_of(const struct type_table *t, const struct type_build *build) {
    return t->head.build_id_len == build->len &&
           memcmp(t->head.build_id, build->id, sizeof build->id) == 0;
}

const struct pm_types_root *type_table_root(const struct type_table *t, const char *text) {
    for (uint32_t i = 0; i < t->head.roots; i++)
        if (strcmp(type_text(t, t->root[i].text), text) == 0)
            return &t->root[i];
    return NULL;
}

// ---- making it ----------------------------------------------------------------------------------

// Arrays have room for as many elements as the next power of two.
static void *more(struct type_table *t, void *array, size_t count, size_t add, size_t size) {
    size_t room = 64, before = 64;
    while (before < count)
        before *= 2;
    for (room = before; room < count + add;)
        room *= 2;
    void *new = array &&room == before ? array : realloc(array, room * size);
    t->failed |= !new;
    return new ? new : array;
}

uint32_t type_table_add_text(struct type_table *t, const char *text) {
    size_t length = strlen(text) + 1;
    if (!*text && t->head.text) // the text begins with ""
        return 0;
    if (!t->head.text && *text)
        type_table_add_text(t, "");
    if (t->head.text + length > PM_TYPES_TEXT_MOST) {
        t->head.limited = 1;
        return 0;
    }
    t->text = more(t, t->text, t->head.text, length, 1);
    if (t->failed)
        return 0;
    memcpy(t->text + t->head.text, text, length);
    t->head.text += (uint32_t)length;
    return (uint32_t)(t->head.text - length);
}

uint32_t type_table_add_root(struct type_table *t, const struct pm_types_root *root) {
    t->root = more(t, t->root, t->head.roots, 1, sizeof *root);
    if (!t->failed)
        t->root[t->head.roots++] = *root;
    return t->head.roots - 1;
}

uint32_t type_table_add_type(struct type_table *t, const struct pm_types_type *type) {
    t->type = more(t, t->type, t->head.types, 1, sizeof *type);
    if (!t->failed)
        t->type[t->head.types++] = *type;
    return t->head.types - 1;
}

uint32_t type_table_add_member(struct type_table *t, const struct pm_types_member *member) {
    t->member = more(t, t->member, t->head.members, 1, sizeof *member);
    if (!t->failed)
        t->member[t->head.members++] = *member;
    return t->head.members - 1;
}

// ---- how people call it -------------------------------------------------------------------------

static const char *keyword(const struct pm_types_type *t) {
    bool is_struct = t->kind == PM_TYPES_STRUCT || t->kind == PM_TYPES_INCOMPLETE ||
                     t->kind == PM_TYPES_SEVERAL || t->kind == PM_TYPES_BEYOND;
    return t->kind == PM_TYPES_UNION ? "union "
           : !is_struct              ? ""
           : t->is_class             ? "class "
                                     : "struct ";
}

void type_name(const struct type_table *t, uint32_t type, char *out, size_t size) {
    char stars[8] = "", dimensions[64] = "";
    const struct pm_types_type *e = &t->type[type];
    for (unsigned i = 0; i < 16 && (e->kind == PM_TYPES_POINTER || e->kind == PM_TYPES_ARRAY);
         i++) {
        size_t used = strlen(dimensions);
        if (e->kind == PM_TYPES_POINTER && strlen(stars) + 1 < sizeof stars)
            strcat(stars, "*");
        else if (e->kind == PM_TYPES_ARRAY && e->count != UINT64_MAX)
            snprintf(dimensions + used, sizeof dimensions - used, "[%lu]", (unsigned long)e->count);
        else if (e->kind == PM_TYPES_ARRAY)
            snprintf(dimensions + used, sizeof dimensions - used, "[]");
        e = &t->type[e->to];
    }
    const char *name = type_text(t, e->name);
    snprintf(out, size, "%s%s%s%s%s%s", keyword(e),
             *name                          ? name
             : e->kind == PM_TYPES_VOID     ? "void"
             : e->kind == PM_TYPES_FUNCTION ? "function"
                                            : "{...}",
             *stars || *dimensions ? " " : "", stars, *stars && *dimensions ? " " : "", dimensions);
}

void type_kind_text(const struct type_table *t, uint32_t type, char *out, size_t size) {
    static const char *const what[PM_TYPES_KINDS] = {
        [PM_TYPES_INTEGER] = "an integer", [PM_TYPES_FLOAT] = "a floating-point number",
        [PM_TYPES_POINTER] = "a pointer",  [PM_TYPES_ARRAY] = "an array",
        [PM_TYPES_STRUCT] = "a struct",    [PM_TYPES_UNION] = "a union",
    };
    const struct pm_types_type *e = &t->type[type];
    const char *text = what[e->kind] ? what[e->kind] : "something else";
    if (e->kind == PM_TYPES_ARRAY && e->count != UINT64_MAX)
        snprintf(out, size, "%s of %lu", text, (unsigned long)e->count);
    else if (e->kind == PM_TYPES_POINTER || !e->size)
        snprintf(out, size, "%s", text);
    else
        snprintf(out, size, "%s of %lu byte%s", text, (unsigned long)e->size,
                 e->size == 1 ? "" : "s");
}

const char *type_end(const struct type_table *t, uint32_t type) {
    static const char *const why[PM_TYPES_KINDS] = {
        [PM_TYPES_VOID] = "a void pointer",
        [PM_TYPES_UNION] = "a union",
        [PM_TYPES_FUNCTION] = "a function",
        [PM_TYPES_INCOMPLETE] = "a type that is nowhere defined",
        [PM_TYPES_SEVERAL] = "a name that several types have",
        [PM_TYPES_BEYOND] = "too many types",
        [PM_TYPES_OTHER] = "a type that is not known here",
    };
    return why[t->type[type].kind];
}
