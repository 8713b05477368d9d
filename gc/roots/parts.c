// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "parts.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/options.h"
#include "base/os.h"
#include "carried.h"
#include "locate.h"
#include "media/heap.h"
#include "program.h"
#include "root_media.h"
#include "root_table.h"

struct pm_part *pm_parts;
unsigned pm_part_count;
static unsigned kept_count; // of dropped roots (carried.h), which are no parts
static bool ready;          // late roots are restored now, or have been

static int resolve_spec(const struct pm_spec *spec, struct pm_error *err) {
    struct pm_location range[64];
    size_t n;
    int status = pm_locate(spec, range, sizeof range / sizeof range[0], &n, err);
    if (status != PM_OK)
        return status;
    for (size_t i = 0; i < n; i++) {
        if (pm_part_count + kept_count >= PM_ROOT_MAX)
            return pm_fail(err, PM_USAGE, "more than %u roots", PM_ROOT_MAX);
        pm_parts[pm_part_count] =
            (struct pm_part){*spec, (uint32_t)i, range[i].addr, range[i].length, {0}};
        if (spec->kind == PM_ROOT_RANGE)
            memcpy(pm_parts[pm_part_count].build, range[i].build, PM_ROOT_BUILD);
        pm_part_count++;
    }
    return PM_OK;
}

const struct pm_part *pm_part_find(const struct pm_spec *spec, uint32_t number) {
    for (unsigned i = 0; i < pm_part_count; i++)
        if (pm_parts[i].number == number && pm_spec_same(&pm_parts[i].spec, spec))
            return &pm_parts[i];
    return NULL;
}

const struct pm_part *pm_part_of(const struct pm_root *root) {
    struct pm_spec spec;
    pm_root_spec(root, &spec);
    return pm_part_find(&spec, root->part);
}

enum pm_root_when pm_parts_when(void) {
    enum pm_root_when when = PM_ROOT_AT_START;
    for (unsigned i = 0; i < pm_part_count; i++)
        when = pm_parts[i].spec.when > when ? pm_parts[i].spec.when : when;
    return when;
}

bool pm_part_waits(const struct pm_part *part) { return part->spec.when && !ready; }

void pm_parts_ready(void) { ready = true; }

// What PMALLOC_ROOTS names without saying when is restored when the heap says.
static void take_when(const struct pm_spec *spec) {
    for (unsigned i = 0; i < pm_part_count; i++)
        if (!pm_parts[i].spec.when && pm_spec_same(&pm_parts[i].spec, spec))
            pm_parts[i].spec.when = spec->when;
}

// Whether a root has a guard in the heap but not in this program, or the other way round. A static
// that is restored without its guard would be constructed again, over its contents.
static bool guards_differ(const struct pm_root_table *t, const struct pm_root *root,
                          const struct pm_spec *spec) {
    bool was = root->part == 1;
    for (uint32_t i = 0; i < t->count && !was; i++)
        was = t->root[i].part == 1 && t->root[i].kind == PM_ROOT_SYMBOL &&
              strcmp(t->root[i].name, root->name) == 0 &&
              strcmp(t->root[i].object, root->object) == 0;
    return was != (pm_part_find(spec, 1) != NULL);
}

// An offset says where a variable lies in one build. In another one, what lies there may be another
// variable, and the old bytes would be copied over it.
static int check_build(const struct pm_root *root, const struct pm_part *part,
                       struct pm_error *err) {
    static const uint8_t unknown[PM_ROOT_BUILD];
    char text[PM_SPEC_TEXT_LEN];
    if (root->kind != PM_ROOT_RANGE || !part || memcmp(root->build, unknown, PM_ROOT_BUILD) == 0 ||
        memcmp(root->build, part->build, PM_ROOT_BUILD) == 0)
        return PM_OK;
    pm_root_text(root, text, sizeof text);
    return pm_fail(
        err, PM_USAGE,
        "the root %.80s of %.120s names bytes of another build of %.60s, and in this one "
        "they may be another variable: run that build, or find out where it lies now "
        "and run `pmalloc-recover --rename-root '%.80s' +OFFSET/LENGTH %.120s` (the same "
        "name if it still is there), or name roots by symbols",
        text, pm_heap.dir, root->object[0] ? root->object : "the program", text, pm_heap.dir);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// The program to which the heap belongs, if it is another one than this.
static const char *other_program(char here[256]) {
    const char *own = base_name(pm_program_on_record());
    pm_os_program_name(here, 256);
    return *own && strcmp(own, here) != 0 ? own : NULL;
}

// A root of the heap is not in this program: because the program only starts the heap's own one,
// because it is quite another one, or because the variable has another name now.
static int say_missing(const struct pm_root *root, const struct pm_error *why,
                       struct pm_error *err) {
    char text[PM_SPEC_TEXT_LEN], here[256];
    const char *own = other_program(here);
    pm_root_text(root, text, sizeof text);
    if (!own)
        return pm_fail(err, PM_USAGE,
                       "%.260s. The heap %.80s has this root. If the variable has another name "
                       "now: `pmalloc-recover --rename-root '%.60s' NEW %.80s`",
                       why->text, pm_heap.dir, text, pm_heap.dir);
    return pm_fail(err, PM_USAGE,
                   "%.60s has no root %.60s. The heap %.90s belongs to %.40s: run that. If %.40s "
                   "starts it: -s PROGRAM=%.40s (PMALLOC_PROGRAM). If the variable has another "
                   "name now: `pmalloc-recover --rename-root '%.60s' NEW %.90s`",
                   here, text, pm_heap.dir, own, here, own, text, pm_heap.dir);
}

// The same of a root that PMALLOC_ROOTS names, such as by the settings that a shell has exported.
static int say_named(struct pm_error *err) {
    char here[256];
    struct pm_error why = *err;
    const char *own = other_program(here);
    if (!own)
        return pm_fail_in(err, "PMALLOC_ROOTS");
    return pm_fail(err, PM_USAGE,
                   "PMALLOC_ROOTS: %.260s. The heap %.80s belongs to %.40s. If %.40s starts it: -s "
                   "PROGRAM=%.40s (PMALLOC_PROGRAM)",
                   why.text, pm_heap.dir, own, here, own);
}

// Checks that every root of the heap is in this program too, with the same size.
static int resolve_registered(const struct pm_root_table *t, struct pm_error *err) {
    for (uint32_t i = 0; i < t->count; i++) {
        const struct pm_root *root = &t->root[i];
        struct pm_spec spec;
        if (pm_root_is_dropped(root))
            continue;
        pm_root_spec(root, &spec);
        if (!pm_part_find(&spec, 0)) {
            struct pm_error why;
            if (resolve_spec(&spec, &why) != PM_OK)
                return say_missing(root, &why, err);
        }
        take_when(&spec);
        const struct pm_part *part = pm_part_find(&spec, root->part);
        if (check_build(root, part, err) != PM_OK)
            return err->status;
        if (root->kind == PM_ROOT_SYMBOL && guards_differ(t, root, &spec))
            return pm_fail(err, PM_USAGE,
                           "root %.160s is not constructed in this program as it was in the heap "
                           "%.120s (its guard variable); the program has changed",
                           root->name, pm_heap.dir);
        if (root->kind == PM_ROOT_SYMBOL && part && part->length != root->length)
            return pm_fail(
                err, PM_USAGE,
                "root %.160s has %lu bytes in this program, but %lu in the heap %.120s; the "
                "program has changed",
                root->name, (unsigned long)part->length, (unsigned long)root->length, pm_heap.dir);
    }
    return PM_OK;
}

int pm_roots_prepare(struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    if (!t)
        return err->status;
    if (!pm_options.roots.text[0] && t->count == 0)
        return PM_OK;
    kept_count = pm_carried_count(t, pm_root_is_dropped);
    struct pm_spec *specs = pm_os_reserve(PM_ROOT_MAX * sizeof *specs);
    pm_parts = pm_os_reserve(PM_ROOT_MAX * sizeof *pm_parts);
    if (!specs || !pm_parts)
        return pm_fail(err, PM_OPERATIONAL,
                       "%s: no memory for the roots; see `ulimit -v` and `ulimit -d`", pm_heap.dir);
    size_t n = 0;
    int status = PM_OK;
    if (pm_options.roots.text[0]) {
        status = pm_spec_parse(pm_options.roots.text, specs, PM_ROOT_MAX, &n, err);
        if (status != PM_OK)
            pm_fail_in(err, "PMALLOC_ROOTS=%.100s", pm_options.roots.text);
    }
    for (size_t i = 0; i < n && status == PM_OK; i++) {
        status = resolve_spec(&specs[i], err);
        if (status != PM_OK)
            status = say_named(err);
    }
    munmap(specs, PM_ROOT_MAX * sizeof *specs);
    return status == PM_OK ? resolve_registered(t, err) : status;
}
