// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "make.h"

#include <stdio.h>

#include "blocks/verify.h"
#include "cli.h"
#include "figures.h"
#include "json.h"
#include "media/fixed_make.h"
#include "media/persist.h"
#include "recovery/offline.h"
#include "recovery/recover.h"

static void report_json(const struct make_request *q, const struct pm_fixed_made *made) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", q->path);
    json_text(&j, "result", q->grow ? "grown" : "made");
    json_text(&j, "medium", made->device ? "device" : "file");
    json_number(&j, "data_bytes", made->data);
    json_number(&j, "metadata_bytes", made->head - made->journal);
    json_number(&j, "journal_bytes", made->journal);
    json_text(&j, "guarantee", pm_persist_row());
    json_close(&j, '}');
    json_end(&j);
}

static void report_text(const struct make_request *q, const struct pm_fixed_made *made) {
    char data[32], head[32], journal[32];
    printf("heap       %s\nresult     %s in %s%s: %s for data, %s for metadata", q->path,
           q->grow ? "grown" : "made",
           made->created  ? "a new file"
           : made->device ? "this device"
                          : "this file",
           made->zeroed || q->grow ? "" : ", over what it held", figure_bytes(made->data, data),
           figure_bytes(made->head - made->journal, head));
    if (made->journal)
        printf(", %s for commits", figure_bytes(made->journal, journal));
    printf("\nguarantee  %s\nnext       PMALLOC_HEAP=%s\n", pm_persist_row(), q->path);
}

// Held, so that nobody changes it. All of it is checked before the medium is touched.
static int open_source(const char *from, struct pm_error *err) {
    struct pm_recover_options how = {0};
    struct pm_recovery found;
    int status = pm_offline_open(from, PM_OPEN_READONLY, err);
    if (status == PM_OK)
        status = pm_recover(&how, &found, err);
    return status == PM_OK ? pm_verify(false, err) : status;
}

int make_heap(const struct make_request *q) {
    struct pm_fixed_made made;
    struct pm_error err;
    struct pm_fixed_wish wish = {q->size, q->journal, q->force, q->from != NULL};
    int status = q->from ? open_source(q->from, &err) : PM_OK;
    if (status == PM_OK)
        status = q->grow ? pm_fixed_grow(q->path, q->size, q->force, &made, &err)
                         : pm_fixed_make(q->path, &wish, &made, &err);
    if (status != PM_OK) {
        pm_say("%s", err.text);
        return err.status;
    }
    (q->json ? report_json : report_text)(q, &made);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}
