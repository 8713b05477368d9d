// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "make.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/verify.h"
#include "cli.h"
#include "confirm.h"
#include "figures.h"
#include "json.h"
#include "media/backing/fixed.h"
#include "media/backing/volume.h"
#include "media/commit/doubt.h"
#include "media/fixed/fixed_make.h"
#include "media/persist.h"
#include "recovery/offline.h"
#include "recovery/recover.h"

// ---- what is named ------------------------------------------------------------------------------

static char *path[PM_MEDIA]; // in their order
static unsigned count;

static int add_path(const char *text, size_t len, struct pm_error *err) {
    if (len == 0)
        return pm_fail(err, PM_OPERATIONAL, "%.300s: the name of a file or device is missing",
                       text);
    if (count == PM_MEDIA)
        return pm_fail(err, PM_OPERATIONAL, "%.300s: a heap has at most %u files and devices", text,
                       PM_MEDIA);
    path[count] = strndup(text, len);
    if (!path[count])
        return pm_fail(err, PM_OPERATIONAL, "no memory");
    count++;
    return PM_OK;
}

// Takes apart PATH:PATH..., as PMALLOC_HEAP is.
static int add_paths(const char *text, struct pm_error *err) {
    size_t len = pm_volume_first(text);
    int status = add_path(text, len, err);
    for (text += len; *text && status == PM_OK; text += len) {
        text++;
        len = strcspn(text, ":");
        status = add_path(text, len, err);
    }
    return status;
}

static int take_paths(const struct make_request *q, struct pm_error *err) {
    int status = PM_OK;
    for (const char *const *p = q->paths; *p && status == PM_OK; p++)
        status = add_paths(*p, err);
    if (status == PM_OK && q->grow && count > 1)
        return pm_fail(err, PM_OPERATIONAL,
                       "--grow makes one file or device larger at a time; '%s' is one too many",
                       path[1]);
    return status;
}

// As PMALLOC_HEAP takes it.
static const char *heap_name(void) {
    static char name[PM_MEDIA * sizeof pm_heap.dir];
    size_t at = 0;
    for (unsigned i = 0; i < count && at < sizeof name; i++)
        at += (size_t)snprintf(name + at, sizeof name - at, "%s%s", i ? ":" : "", path[i]);
    return name;
}

// ---- the report ---------------------------------------------------------------------------------

static void medium_json(struct json *j, const struct pm_fixed_made *made) {
    json_text(j, "medium", made->device ? "device" : "file");
    json_number(j, "data_bytes", made->data);
    json_number(j, "metadata_bytes", made->head - made->journal);
    json_number(j, "journal_bytes", made->journal);
    json_number(j, "unused_bytes", made->beyond);
}

static void report_json(const struct make_request *q, const struct pm_fixed_made *made) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", heap_name());
    json_text(&j, "result", made->same ? "unchanged" : q->grow ? "grown" : "made");
    if (count == 1)
        medium_json(&j, made);
    else
        json_open(&j, "media", '[');
    for (unsigned i = 0; i < count && count > 1; i++) {
        json_open(&j, NULL, '{');
        json_text(&j, "path", path[i]);
        medium_json(&j, &made[i]);
        json_close(&j, '}');
    }
    if (count > 1)
        json_close(&j, ']');
    json_text(&j, "guarantee", pm_persist_row());
    json_close(&j, '}');
    json_end(&j);
}

static void medium_text(const struct make_request *q, unsigned i,
                        const struct pm_fixed_made *made) {
    char data[32], head[32], journal[32], beyond[32];
    const char *what = made->same ? "as large as before," : q->grow ? "grown" : "made";
    printf("%-10s %s in ", i ? "" : "result", what);
    if (count > 1)
        printf("%s", path[i]);
    else
        fputs(made->created ? "a new file" : made->device ? "this device" : "this file", stdout);
    printf("%s: %s for data, %s for metadata", made->zeroed || q->grow ? "" : ", over what it held",
           figure_bytes(made->data, data), figure_bytes(made->head - made->journal, head));
    if (made->journal)
        printf(", %s for commits", figure_bytes(made->journal, journal));
    if (made->beyond)
        printf("; its last %s are not used: a file or device has at most 1 TiB for data",
               figure_bytes(made->beyond, beyond));
    putchar('\n');
}

static void report_text(const struct make_request *q, const struct pm_fixed_made *made) {
    printf("heap       %s\n", heap_name());
    for (unsigned i = 0; i < count; i++)
        medium_text(q, i, &made[i]);
    printf("guarantee  %s\n", pm_persist_row());
    if (q->grow && made->media > 1)
        printf("next       PMALLOC_HEAP=, with all %u files and devices; this is number %u\n",
               made->media, made->number + 1);
    else
        printf("next       PMALLOC_HEAP=%s\n", heap_name());
}

// ---- the work -----------------------------------------------------------------------------------

// Held, so that nobody changes it. All of it is checked before the media are touched.
static int open_source(const char *from, struct pm_error *err) {
    struct pm_recover_options how = {0};
    struct pm_recovery found;
    int status = pm_offline_open(from, PM_OPEN_READONLY, err);
    if (status == PM_OK)
        status = pm_recover(&how, &found, err);
    if (status == PM_OK)
        pm_doubt_say();
    return status == PM_OK ? pm_verify(false, err) : status;
}

// Whether the heap in this file or device begins here, whatever its state.
static bool holds_heap(const char *at) {
    uint64_t magic = 0;
    int fd = open(at, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool read_it = fd >= 0 && pread(fd, &magic, sizeof magic, 0) == sizeof magic;
    if (fd >= 0)
        close(fd);
    return read_it && magic == PM_LAYOUT_MAGIC;
}

static bool may_overwrite(const struct make_request *q) {
    for (unsigned i = 0; i < count && q->force && !q->grow; i++)
        if (holds_heap(path[i]))
            return confirm(q->yes,
                           "%.300s holds a heap: a new one there loses all its data. "
                           "`pmalloc-backup %.300s DIR` keeps a copy",
                           path[i], heap_name());
    return true;
}

int make_heap(const struct make_request *q) {
    struct pm_fixed_made made[PM_MEDIA];
    struct pm_error err;
    struct pm_fixed_wish wish = {q->size, q->journal, q->force, q->from != NULL};
    int status = take_paths(q, &err);
    if (status == PM_OK && !may_overwrite(q))
        return PM_USAGE;
    if (status == PM_OK && q->from)
        status = open_source(q->from, &err);
    if (status == PM_OK)
        status = q->grow ? pm_fixed_grow(path[0], q->size, q->force, made, &err)
                         : pm_fixed_make((const char *const *)path, count, &wish, made, &err);
    if (status != PM_OK) {
        pm_say("%s", err.text);
        return err.status;
    }
    (q->json ? report_json : report_text)(q, made);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}
