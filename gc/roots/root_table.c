// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The root table on media: reading, checking, replacing. Capture is in capture.c.
#include "root_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/crc.h"
#include "media/backing/file.h"
#include "media/backing/file_space.h"
#include "media/backing/view.h"
#include "media/commit/journal_over.h"
#include "media/heap.h"
#include "media/open/heap_open.h"
#include "media/persist.h"
#include "root_media.h"
#include "spec.h"

static uint32_t table_crc(const struct pm_root_table *t) {
    size_t from = offsetof(struct pm_root_table, count);
    size_t to = offsetof(struct pm_root_table, root) + t->count * sizeof t->root[0];
    return pm_crc32c(0, (const char *)t + from, to - from);
}

// A heap that never had roots has an all-zero table at epoch 0.
static bool untouched(const struct pm_root_table *t) {
    return t->epoch == 0 && t->count == 0 && t->crc == 0 && t->area_length == 0;
}

// Whether the root can be written as the text of a spec and read back. PMAlloc records no other
// roots, so anything else is damage.
static bool root_is_spec(const struct pm_root *r) {
    char text[PM_SPEC_TEXT_LEN];
    struct pm_spec spec, said;
    struct pm_error ignored;
    pm_root_spec(r, &spec);
    int length = pm_spec_format(&spec, text, sizeof text);
    return length >= 0 && pm_spec_parse_one(text, (size_t)length, &said, &ignored) == PM_OK &&
           pm_spec_equal(&spec, &said) && r->length > 0 &&
           r->part <= (r->kind == PM_ROOT_OBJECT ? PM_ROOT_MAX : r->kind == PM_ROOT_SYMBOL);
}

static bool root_fits(const struct pm_root *r, const struct pm_root_table *t) {
    return r->kind >= PM_ROOT_SYMBOL && r->kind <= PM_ROOT_RANGE && r->image >= t->area_offset &&
           r->image - t->area_offset <= t->area_length &&
           r->length <= t->area_length - (r->image - t->area_offset) &&
           memchr(r->object, 0, sizeof r->object) && memchr(r->name, 0, sizeof r->name);
}

const struct pm_root_table *pm_roots_table(struct pm_error *err) {
    uint32_t epoch = pm_heap_root_epoch();
    const struct pm_root_table *t = &pm_heap.super->roots[epoch & 1];
    if (epoch == 0 && untouched(t))
        return t;
    if (t->count > PM_ROOT_MAX || t->epoch != epoch || t->crc != table_crc(t)) {
        pm_fail(err, PM_DAMAGE,
                "%s/superblock: the root table's checksum is wrong; restore the file", pm_heap.dir);
        return NULL;
    }
    if (t->area_offset % PM_PAGE_SIZE || t->area_length % PM_PAGE_SIZE) { // it could not be mapped
        pm_fail(err, PM_DAMAGE, "%s/superblock: the captured roots are not whole pages",
                pm_heap.dir);
        return NULL;
    }
    bool fits = t->area_offset <= pm_heap.roots.size &&
                t->area_length <= pm_heap.roots.size - t->area_offset;
    for (uint32_t i = 0; fits && i < t->count; i++)
        fits = root_fits(&t->root[i], t);
    if (!fits) {
        pm_fail(err, PM_DAMAGE, "%s/roots: too short for the captured roots; was it truncated?",
                pm_heap.dir);
        return NULL;
    }
    for (uint32_t i = 0; i < t->count; i++)
        if (!root_is_spec(&t->root[i])) {
            pm_fail(err, PM_DAMAGE, "%s/superblock: root %u of the root table is no root",
                    pm_heap.dir, i);
            return NULL;
        }
    return t;
}

int pm_roots_unmapped(struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL, "%s/roots: cannot map: %s", pm_heap.dir,
                   pm_strerror(errno));
}

const void *pm_roots_images(const struct pm_root_table *t) {
    if (t->area_length == 0 || !pm_file_ready(&pm_heap.roots))
        return NULL;
    const void *map = pm_journal_over_map_roots(t->area_offset, t->area_length);
    if (map && !pm_heap.roots.length)
        pm_view_note(map, t->area_length, pm_heap.roots.name, false, t->area_offset);
    return map;
}

int pm_roots_each(pm_root_fn *fn, void *arg, struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    if (!t)
        return err->status;
    const char *images = pm_roots_images(t);
    if (t->area_length && !images)
        return pm_roots_unmapped(err);
    for (uint32_t i = 0; i < t->count; i++)
        fn(&(struct pm_root_bytes){images + (t->root[i].image - t->area_offset), t->root[i].length,
                                   t->root[i].address,
                                   t->root[i].kind != PM_ROOT_OBJECT &&
                                       !pm_root_is_dropped(&t->root[i])},
           arg);
    if (images)
        pm_file_unmap(&pm_heap.roots, images, t->area_length);
    uint64_t slots[PM_ROOT_SLOTS];
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        slots[i] = pm_heap_slot(i);
    fn(&(struct pm_root_bytes){slots, sizeof slots, 0, true}, arg);
    return PM_OK;
}

bool pm_roots_images_crc(uint32_t *crc, struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    const char *images = t ? pm_roots_images(t) : NULL;
    *crc = 0;
    if (!t)
        return false;
    if (t->area_length && !images) {
        pm_roots_unmapped(err);
        return false;
    }
    for (uint32_t i = 0; i < t->count; i++)
        *crc = pm_crc32c(*crc, images + (t->root[i].image - t->area_offset), t->root[i].length);
    if (images)
        pm_file_unmap(&pm_heap.roots, images, t->area_length);
    return true;
}

void pm_root_spec(const struct pm_root *root, struct pm_spec *spec) {
    memset(spec, 0, sizeof *spec);
    spec->kind = (enum pm_root_kind)root->kind;
    memcpy(spec->object, root->object, sizeof spec->object);
    memcpy(spec->name, root->name, sizeof spec->name);
    spec->when = (enum pm_root_when)root->when;
    if (root->kind == PM_ROOT_RANGE) {
        spec->offset = root->spec_offset;
        spec->length = root->length;
    }
}

void pm_root_text(const struct pm_root *root, char *out, size_t outlen) {
    struct pm_spec spec;
    pm_root_spec(root, &spec);
    if (pm_spec_format(&spec, out, outlen) < 0)
        snprintf(out, outlen, "?");
}

unsigned pm_roots_list(void (*fn)(const struct pm_root *root, const char *text, void *arg),
                       void *arg) {
    struct pm_error ignored;
    const struct pm_root_table *table = pm_roots_table(&ignored);
    uint32_t all = table ? table->count : 0;
    unsigned count = 0;
    for (uint32_t i = 0; i < all; count++) {
        char text[PM_SPEC_TEXT_LEN];
        struct pm_root root = table->root[i++];
        for (; i < all && table->root[i].part; i++) // the other parts of the same root
            root.length += table->root[i].length;
        pm_root_text(&root, text, sizeof text);
        fn(&root, text, arg);
    }
    return count;
}

unsigned pm_roots_slots_used(void) {
    unsigned count = 0;
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        count += pm_heap_slot(i) != 0;
    return count;
}

struct pm_root_table *pm_roots_next_table(void) {
    return &pm_heap.super->roots[(pm_heap_root_epoch() + 1) & 1];
}

int pm_roots_back_table(uint32_t count, struct pm_error *err) {
    size_t length = offsetof(struct pm_root_table, root) + count * sizeof(struct pm_root);
    uint64_t offset = (uint64_t)((char *)pm_roots_next_table() - (char *)pm_heap.super);
    if (pm_file_back_with_space(&pm_heap.super_file, offset, length))
        return PM_OK;
    return pm_fail(err, PM_OPERATIONAL,
                   "%s/superblock: no room can be made for the table of %u roots: %s", pm_heap.dir,
                   count, pm_strerror(errno));
}

void pm_roots_switch(void) {
    struct pm_root_table *next = pm_roots_next_table();
    uint32_t epoch = pm_heap_root_epoch() + 1;
    next->epoch = epoch;
    next->crc = table_crc(next);
    pm_make_durable(next,
                    offsetof(struct pm_root_table, root) + next->count * sizeof next->root[0]);
    pm_commit_u64(&pm_heap.super->state.root_epoch, pm_seal(epoch, PM_SALT_ROOT_EPOCH));
}

static bool has_text(const struct pm_root *root, const char *name) {
    char text[PM_SPEC_TEXT_LEN];
    pm_root_text(root, text, sizeof text);
    return strcmp(text, name) == 0;
}

static int no_such_root(const char *name, struct pm_error *err) {
    return pm_fail(err, PM_USAGE, "%s has no root named '%.200s'; `pmalloc-info %s` lists them",
                   pm_heap.dir, name, pm_heap.dir);
}

// Makes room for the next table with `count` roots.
static int begin_table(const struct pm_root_table *t, uint32_t count, struct pm_error *err) {
    int status = pm_roots_back_table(count, err);
    if (status != PM_OK)
        return status;
    pm_heap.changed = true;
    pm_heap_dirty(); // first: the close record does not fit the new table
    struct pm_root_table *next = pm_roots_next_table();
    next->count = count;
    next->area_offset = t->area_offset;
    next->area_length = t->area_length;
    return PM_OK;
}

static int check_new_name(const struct pm_root_table *t, const char *name, const char *to,
                          struct pm_spec *spec, struct pm_error *err) {
    if (pm_spec_parse_one(to, strlen(to), spec, err) != PM_OK)
        return err->status;
    uint32_t found = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct pm_root *root = &t->root[i];
        if (strcmp(name, to) != 0 && has_text(root, to))
            return pm_fail(
                err, PM_USAGE,
                "%s has a root named '%.200s' already; --drop-root that first, or take another "
                "name",
                pm_heap.dir, to);
        if (!has_text(root, name))
            continue;
        found++;
        if ((root->kind == PM_ROOT_OBJECT) != (spec->kind == PM_ROOT_OBJECT))
            return pm_fail(err, PM_USAGE, "'%.100s' is no name for the same memory as '%.100s'", to,
                           name);
        if (spec->kind == PM_ROOT_RANGE && (root->part || spec->length != root->length))
            return pm_fail(err, PM_USAGE, "'%.100s' has %lu bytes, and '%.100s' has %lu", name,
                           (unsigned long)root->length, to, (unsigned long)spec->length);
    }
    return found ? PM_OK : no_such_root(name, err);
}

int pm_roots_rename(const char *name, const char *to, struct pm_error *err) {
    struct pm_spec spec;
    const struct pm_root_table *t = pm_roots_table(err);
    int status = t ? check_new_name(t, name, to, &spec, err) : err->status;
    if (status == PM_OK)
        status = begin_table(t, t->count, err);
    if (status != PM_OK)
        return status;
    struct pm_root_table *next = pm_roots_next_table();
    struct pm_root renamed = {0};
    memcpy(renamed.object, spec.object, sizeof renamed.object);
    bool dropped = pm_root_is_dropped(&renamed);
    for (uint32_t i = 0; i < t->count; i++) {
        struct pm_root *root = &next->root[i];
        *root = t->root[i];
        if (!has_text(root, name))
            continue;
        bool same_place = root->kind == PM_ROOT_RANGE && root->spec_offset == spec.offset &&
                          pm_root_is_dropped(root) != dropped;
        root->kind = (uint32_t)spec.kind;
        root->when = (uint8_t)spec.when;
        root->spec_offset = spec.kind == PM_ROOT_RANGE ? spec.offset : 0;
        memcpy(root->object, spec.object, sizeof root->object);
        memcpy(root->name, spec.name, sizeof root->name);
        if (!same_place)
            memset(root->build, 0, sizeof root->build); // what comes next is right
    }
    pm_roots_switch();
    return PM_OK;
}

int pm_roots_drop(const char *name, struct pm_error *err) {
    const struct pm_root_table *t = pm_roots_table(err);
    if (!t)
        return err->status;
    uint32_t gone = 0, kept = 0;
    for (uint32_t i = 0; i < t->count; i++)
        gone += has_text(&t->root[i], name);
    if (!gone)
        return no_such_root(name, err);
    int status = begin_table(t, t->count - gone, err);
    if (status != PM_OK)
        return status;
    struct pm_root_table *next = pm_roots_next_table();
    for (uint32_t i = 0; i < t->count; i++)
        if (!has_text(&t->root[i], name))
            next->root[kept++] = t->root[i];
    pm_roots_switch();
    return PM_OK;
}
