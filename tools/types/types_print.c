// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "types_print.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "media/backing/fixed.h"
#include "media/backing/volume.h"
#include "media/heap.h"
#include "media/open/heap_open.h"
#include "tools/common/info_print.h"
#include "tools/common/json.h"
#include "tools/common/text.h"
#include "type_compare.h"
#include "type_file.h"

enum { NAME = 300, ENDS_SHOWN = 5 };

// ---- reading ------------------------------------------------------------------------------------

// Whether the build of the table is the one that last used the heap.
static bool is_last(const struct type_table *t) {
    struct pm_program last;
    return info_program(&last) && t->head.build_id_len &&
           last.build_id_len == t->head.build_id_len &&
           memcmp(last.build_id, t->head.build_id, sizeof last.build_id) == 0;
}

static int read_table(const char *heap, struct type_table *t, bool *last, struct pm_error *err) {
    char first[PATH_MAX];
    snprintf(first, sizeof first, "%.*s", (int)pm_volume_first(heap), heap);
    if (pm_heap_open(heap, PM_OPEN_LOOK, false, err) != PM_OK)
        return err->status;
    int dir = open(first, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum type_file found = dir >= 0           ? type_file_read(dir, t)
                           : errno == ENOTDIR ? TYPE_FILE_NONE
                                              : TYPE_FILE_FAILED;
    int error = errno;
    *last = found == TYPE_FILE_READ && is_last(t);
    if (dir >= 0)
        close(dir);
    pm_heap_release();
    switch (found) {
    case TYPE_FILE_READ:
        return PM_OK;
    case TYPE_FILE_NONE:
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s has no types on record: pmalloc-run records those of a program that "
                       "was built with -g, if its heap lies in a directory and has a root",
                       heap);
    case TYPE_FILE_OTHER:
        return pm_fail(
            err, PM_OPERATIONAL,
            "%.300s/%s was made by another version of PMAlloc; the next start of another "
            "build makes it anew",
            heap, type_file_name());
    case TYPE_FILE_FAILED:
        return pm_fail(err, PM_OPERATIONAL, "%.300s/%s: %s", heap, type_file_name(),
                       pm_strerror(error));
    default:
        return pm_fail(err, PM_DAMAGE,
                       "%.300s/%s is damaged; the heap's data are not; the next start of the same "
                       "build makes it anew",
                       heap, type_file_name());
    }
}

void types_say_damage(const char *heap) {
    struct type_table t;
    if (!pm_fixed_is_open() && type_file_read(pm_heap.dir_fd, &t) == TYPE_FILE_DAMAGED)
        pm_say("note: %.300s/%s is damaged; the heap's data are not; the next start of the same "
               "build makes it anew",
               heap, type_file_name());
}

static const char *no_type(const struct pm_types_root *root) {
    return root->is == PM_TYPES_ROOT_WHOLE     ? "no variable is restored by it"
           : root->is == PM_TYPES_ROOT_LIBRARY ? "a library's, of which no types are read"
                                               : "the program's debug information does not have it";
}

static void build_text(const struct type_table *t, char *out) {
    pm_elf_hex(out, t->head.build_id, t->head.build_id_len ? t->head.build_id_len : 12);
}

static const char *is_text(uint32_t is) {
    static const char *const text[] = {"member",   "base",   "virtual base", "virtual functions",
                                       "argument", "derived"};
    return text[is];
}

// ---- text ---------------------------------------------------------------------------------------

struct ends {
    unsigned count;
};

static void print_end(const char *way, const char *why, void *arg) {
    struct ends *ends = arg;
    if (ends->count++ >= ENDS_SHOWN)
        return;
    printf("           ends at ");
    text_print(way);
    printf(": %s\n", why);
}

static void print_root(const struct type_table *t, const struct pm_types_root *root,
                       bool *reached) {
    char name[NAME];
    struct ends ends = {0};
    printf("root       ");
    text_print(type_text(t, root->text));
    if (root->is != PM_TYPES_ROOT_TYPED) {
        printf(": %s\n", no_type(root));
        return;
    }
    type_name(t, root->type, name, sizeof name);
    if (root->variable)
        printf(" (%s)", type_text(t, root->variable));
    printf(": ");
    text_print(name);
    printf(", %lu bytes\n", (unsigned long)root->length);
    type_ends(t, root, print_end, &ends, reached);
    if (ends.count > ENDS_SHOWN)
        printf("           and %u ends more\n", ends.count - ENDS_SHOWN);
}

static void print_member(const struct type_table *t, const struct pm_types_member *m) {
    char name[NAME], place[64] = "";
    type_name(t, m->type, name, sizeof name);
    if (m->is < PM_TYPES_VIRTUAL_BASE || m->is == PM_TYPES_VTABLE)
        snprintf(place, sizeof place, m->at % 8 ? "%lu.%lu" : "%lu", (unsigned long)(m->at / 8),
                 (unsigned long)(m->at % 8));
    printf("  %8s  ", place);
    if (m->is == PM_TYPES_MEMBER)
        text_print(type_text(t, m->name));
    else
        printf("(%s)", is_text(m->is));
    if (m->bits)
        printf(":%u", m->bits);
    if (m->is != PM_TYPES_VTABLE) {
        printf("  ");
        text_print(name);
    }
    putchar('\n');
}

static void print_type(const struct type_table *t, uint32_t number) {
    const struct pm_types_type *type = &t->type[number];
    char name[NAME];
    type_name(t, number, name, sizeof name);
    text_print(name);
    printf(", %lu bytes\n", (unsigned long)type->size);
    for (uint32_t i = type->first; i < type->first + type->members; i++)
        print_member(t, &t->member[i]);
}

static void print_text(const struct type_table *t, const char *heap, bool last) {
    char id[2 * PM_BUILD_ID_MAX + 1];
    bool *reached = calloc(t->head.types + 1, sizeof *reached);
    uint32_t structs = 0;
    build_text(t, id);
    for (uint32_t i = 0; i < t->head.types; i++)
        structs += t->type[i].kind == PM_TYPES_STRUCT;
    printf("heap       %s\nbuild      %s%s\n", heap, id,
           last ? ", which has used the heap last" : "");
    printf("types      %u structs and classes, %u bytes\n", structs, (unsigned)t->head.bytes);
    if (*type_text(t, t->head.missing))
        printf("missing    %s, which has a part of the debug information\n",
               type_text(t, t->head.missing));
    if (t->head.limited)
        puts("limit      there are more types; the farthest from the roots are left out");
    for (uint32_t i = 0; reached && i < t->head.roots; i++)
        print_root(t, &t->root[i], reached);
    for (uint32_t i = 0; i < t->head.types; i++)
        if (t->type[i].kind == PM_TYPES_STRUCT)
            print_type(t, i);
    free(reached);
}

// ---- JSON ---------------------------------------------------------------------------------------

static void json_one_end(const char *way, const char *why, void *arg) {
    struct json *j = arg;
    json_open(j, NULL, '{');
    json_text(j, "at", way);
    json_text(j, "why", why);
    json_close(j, '}');
}

static void json_root(struct json *j, const struct type_table *t, const struct pm_types_root *root,
                      bool *reached) {
    char name[NAME];
    json_open(j, NULL, '{');
    json_text(j, "root", type_text(t, root->text));
    if (root->is != PM_TYPES_ROOT_TYPED) {
        json_text(j, "reason", no_type(root));
        json_close(j, '}');
        return;
    }
    memset(reached, 0, t->head.types);
    type_name(t, root->type, name, sizeof name);
    json_text(j, "variable", type_text(t, root->variable ? root->variable : root->text));
    json_text(j, "type", name);
    json_number(j, "length", root->length);
    json_open(j, "ends", '[');
    type_ends(t, root, json_one_end, j, reached);
    json_close(j, ']');
    json_open(j, "reaches", '[');
    for (uint32_t i = 0; i < t->head.types; i++)
        if (reached[i] && t->type[i].kind == PM_TYPES_STRUCT)
            json_number(j, NULL, i);
    json_close(j, ']');
    json_close(j, '}');
}

static void json_member(struct json *j, const struct type_table *t,
                        const struct pm_types_member *m) {
    char name[NAME];
    type_name(t, m->type, name, sizeof name);
    json_open(j, NULL, '{');
    json_text(j, "is", is_text(m->is));
    json_text(j, "name", type_text(t, m->name));
    json_text(j, "type", name);
    if (m->is < PM_TYPES_VIRTUAL_BASE || m->is == PM_TYPES_VTABLE) {
        json_number(j, "offset", m->at / 8);
        json_number(j, "size", t->type[m->type].size);
    }
    if (m->bits) {
        json_number(j, "bit", m->at % 8);
        json_number(j, "bits", m->bits);
    }
    json_close(j, '}');
}

static void json_type(struct json *j, const struct type_table *t, uint32_t number) {
    const struct pm_types_type *type = &t->type[number];
    char name[NAME], hash[24];
    type_name(t, number, name, sizeof name);
    snprintf(hash, sizeof hash, "%016lx", (unsigned long)type->hash);
    json_open(j, NULL, '{');
    json_number(j, "number", number);
    json_text(j, "name", name);
    json_number(j, "size", type->size);
    json_text(j, "hash", hash);
    json_open(j, "members", '[');
    for (uint32_t i = type->first; i < type->first + type->members; i++)
        json_member(j, t, &t->member[i]);
    json_close(j, ']');
    json_close(j, '}');
}

static void print_json(const struct type_table *t, const char *heap, bool last) {
    struct json j = {.out = stdout};
    char id[2 * PM_BUILD_ID_MAX + 1];
    bool *reached = calloc(t->head.types + 1, sizeof *reached);
    build_text(t, id);
    json_open(&j, NULL, '{');
    json_text(&j, "heap", heap);
    json_text(&j, "build", id);
    json_bool(&j, "last", last);
    json_bool(&j, "limited", t->head.limited != 0);
    json_text(&j, "missing", type_text(t, t->head.missing));
    json_open(&j, "roots", '[');
    for (uint32_t i = 0; reached && i < t->head.roots; i++)
        json_root(&j, t, &t->root[i], reached);
    json_close(&j, ']');
    json_open(&j, "types", '[');
    for (uint32_t i = 0; i < t->head.types; i++)
        if (t->type[i].kind == PM_TYPES_STRUCT)
            json_type(&j, t, i);
    json_close(&j, ']');
    json_close(&j, '}');
    json_end(&j);
    free(reached);
}

int types_print(const char *heap, bool json) {
    struct type_table t;
    struct pm_error err;
    bool last;
    if (read_table(heap, &t, &last, &err) != PM_OK) {
        pm_say("%s", err.text);
        if (json)
            info_error(heap, &err);
        return err.status;
    }
    if (json)
        print_json(&t, heap, last);
    else
        print_text(&t, heap, last);
    return PM_OK;
}
