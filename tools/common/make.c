// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "make.h"

#include <stdio.h>

#include "cli.h"
#include "figures.h"
#include "json.h"
#include "media/fixed_make.h"
#include "media/persist.h"

static void report_json(const char *path, const struct pm_fixed_made *made) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", path);
    json_text(&j, "result", "made");
    json_text(&j, "medium", made->device ? "device" : "file");
    json_number(&j, "data_bytes", made->data);
    json_number(&j, "metadata_bytes", made->head);
    json_text(&j, "guarantee", pm_persist_row());
    json_close(&j, '}');
    json_end(&j);
}

static void report_text(const char *path, const struct pm_fixed_made *made) {
    char data[32], head[32];
    printf("heap       %s\nresult     made in %s%s: %s for data, %s for metadata\n", path,
           made->created  ? "a new file"
           : made->device ? "this device"
                          : "this file",
           made->zeroed ? "" : ", over what it held", figure_bytes(made->data, data),
           figure_bytes(made->head, head));
    printf("guarantee  %s\nnext       PMALLOC_HEAP=%s\n", pm_persist_row(), path);
}

int make_heap(const char *path, uint64_t size, bool force, bool json) {
    struct pm_fixed_made made;
    struct pm_error err;
    if (pm_fixed_make(path, size, force, &made, &err) != PM_OK) {
        pm_say("%s", err.text);
        return err.status;
    }
    (json ? report_json : report_text)(path, &made);
    return cli_flush(PM_OK, PM_OPERATIONAL);
}
