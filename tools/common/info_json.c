// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "info_print.h"

#include <stdio.h>

#include "commit_print.h"
#include "heap_figures.h"
#include "instants_print.h"
#include "json.h"
#include "marking/forms.h"
#include "media/backing/own_limit.h"
#include "media/heap.h"
#include "media/open/spare.h"
#include "objects_print.h"
#include "pauses_print.h"
#include "rebased_print.h"
#include "recovered_print.h"
#include "recovery/kept.h"
#include "root_member.h"
#include "roots/root_table.h"

static void put_identity(struct json *j, const struct info *info) {
    const struct pm_superblock *super = &pm_heap.super->super;
    const struct pm_state *state = &pm_heap.super->state;
    char text[72];
    json_text(j, "heap", info->heap);
    json_number(j, "format_version", super->version);
    info_uuid(text);
    json_text(j, "uuid", text);
    json_number(j, "created", super->created);
    json_text(j, "state", info->found.was_clean ? "clean" : "dirty");
    json_text(j, "collected", pm_kept_garbage() ? "no" : "yes");
    json_number(j, "opens", state->opens);
    json_number(j, "owner_pid", state->owner_pid);
    json_bool(j, "copy", pm_heap.copy);
    json_text(j, "pointers", pm_forms_text(pm_forms));
    struct instants instants;
    recovered_json(j);
    rebased_json(j);
    commit_json(j);
    if (instants_of_heap(info->heap, &instants)) {
        instants_json(j, &instants);
        if (pm_pauses_count(&instants.pauses))
            pauses_json(j, &instants.pauses);
    }
    json_text(j, "guarantee", commit_guarantee());
    objects_json(j);
    struct pm_program program;
    if (!info_program(&program))
        return;
    json_open(j, "program", '{');
    json_text(j, "path", program.path);
    info_build_id(&program, text);
    json_text(j, "build_id", text);
    json_number(j, "main_base", program.main_base);
    json_number(j, "libc_base", program.libc_base);
    json_text(j, "addresses", info_addresses(&program, false));
    json_close(j, '}');
}

static void put_totals(struct json *j, const struct info *info) {
    const struct pm_recovery *f = &info->found;
    for (unsigned i = 0; i < heap_figures_count; i++)
        json_number(j, heap_figures[i].key, heap_figure(info, i));
    json_bool(j, "leaks_exact", f->leaks_exact);
    if (f->live_bytes)
        json_real(j, "metadata_ratio",
                  (double)info->census.files.metadata_bytes / (double)f->live_bytes);
    json_number(j, "spare_bytes", pm_spare_bytes());
    json_number(j, "own_limit_bytes", pm_own_limit());
}

static void put_files(struct json *j, const struct census *c) {
    json_open(j, "files", '{');
    for (unsigned i = 0; i < c->files.count; i++) {
        json_open(j, c->files.file[i].name, '{');
        json_number(j, "length", c->files.file[i].length);
        json_number(j, "allocated", c->files.file[i].allocated);
        json_close(j, '}');
    }
    json_close(j, '}');
}

static void put_classes(struct json *j, const struct census *c) {
    json_open(j, "classes", '[');
    PM_EACH_CLASS(i) {
        if (!c->cls[i].blocks)
            continue;
        json_open(j, NULL, '{');
        json_number(j, "size", pm_classes[i].size);
        json_number(j, "slabs", c->cls[i].slabs);
        json_number(j, "blocks", c->cls[i].blocks);
        json_number(j, "live", c->cls[i].live);
        json_close(j, '}');
    }
    json_close(j, ']');
}

static void put_extents(struct json *j, const struct census *c) {
    json_open(j, "large", '[');
    for (unsigned i = 0; i < CENSUS_BUCKETS; i++) {
        if (!c->bucket[i].count)
            continue;
        json_open(j, NULL, '{');
        json_number(j, "from", PM_PAGE_SIZE << i);
        json_number(j, "blocks", c->bucket[i].count);
        json_number(j, "bytes", c->bucket[i].bytes);
        json_number(j, "live", c->bucket[i].live);
        json_number(j, "live_bytes", c->bucket[i].live_bytes);
        json_close(j, '}');
    }
    json_close(j, ']');
}

struct put {
    struct json *j;
    const char *heap;
};

static void put_root(const struct pm_root *root, const char *text, void *arg) {
    const struct put *p = arg;
    struct json *j = p->j;
    char member[MEMBER_NAME];
    json_open(j, NULL, '{');
    json_text(j, "root", text);
    json_number(j, "bytes", root->length);
    json_number(j, "address", root->address);
    json_bool(j, "waits", root->waits);
    if (root_member(p->heap, root, member))
        json_text(j, "member", member);
    json_close(j, '}');
}

void info_json(const struct info *info) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    put_identity(&j, info);
    put_totals(&j, info);
    put_files(&j, &info->census);
    put_classes(&j, &info->census);
    put_extents(&j, &info->census);
    json_open(&j, "root_table", '[');
    pm_roots_list(put_root, &(struct put){&j, info->heap});
    json_close(&j, ']');
    json_number(&j, "slots_used", pm_roots_slots_used());
    json_close(&j, '}');
    json_end(&j);
}

void info_error(const char *heap, const struct pm_error *err) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", heap);
    json_text(&j, "result", err->status == PM_DAMAGE ? "damaged" : "error");
    json_text(&j, "error", err->text);
    json_close(&j, '}');
    json_end(&j);
}
