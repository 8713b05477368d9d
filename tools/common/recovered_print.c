// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "recovered_print.h"

#include <stdio.h>

#include "commit_print.h"
#include "figures.h"
#include "media/heap.h"
#include "recovery/recovered.h"

void recovered_text(void) {
    struct pm_recovered r;
    char when[96], live[32], freed[32];
    if (!pm_recovered_read(&pm_heap.super->state, &r))
        return;
    printf("recovered  %u time%s, last at %s, in %.3f s; ", r.count, r.count == 1 ? "" : "s",
           commit_when(r.time, when), (double)r.took_us / 1e6);
    if (r.kept_all)
        puts("everything was kept");
    else
        printf("%s reached; freed %s in %u large block%s and %u slab%s\n",
               figure_bytes(r.live_bytes, live), figure_bytes(r.freed_bytes, freed),
               r.freed_extents, r.freed_extents == 1 ? "" : "s", r.freed_slabs,
               r.freed_slabs == 1 ? "" : "s");
}

void recovered_json(struct json *j) {
    struct pm_recovered r;
    if (!pm_recovered_read(&pm_heap.super->state, &r))
        return;
    json_open(j, "recovered", '{');
    json_number(j, "count", r.count);
    json_real(j, "time", (double)r.time / 1e9);
    json_real(j, "seconds", (double)r.took_us / 1e6);
    json_bool(j, "kept_all", r.kept_all);
    json_number(j, "live_bytes", r.live_bytes);
    json_number(j, "freed_bytes", r.freed_bytes);
    json_number(j, "freed_extents", r.freed_extents);
    json_number(j, "freed_slabs", r.freed_slabs);
    json_close(j, '}');
}
