// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "clean.h"

#include <stddef.h>

#include "booklog.h"
#include "crc.h"
#include "heap.h"
#include "persist.h"

static uint32_t crc_of(const struct pm_clean *c) {
    return pm_crc32c(0, c, offsetof(struct pm_clean, crc));
}

void pm_clean_vouch(uint64_t heap_bytes, const uint32_t *images_crc) {
    struct pm_state *state = &pm_heap.super->state;
    struct pm_log_digest log = pm_log_digest();
    struct pm_clean c = {.opens = state->opens,
                         .heap_bytes = heap_bytes,
                         .log_entries = log.entries,
                         .log_sum = log.sum,
                         .bitmaps_tag = state->bitmaps_tag,
                         .images_crc = images_crc ? *images_crc : 0,
                         .images_known = images_crc != NULL};
    c.crc = crc_of(&c);
    state->clean = c;
    pm_make_durable(&state->clean, sizeof c);
}

int pm_clean_check(struct pm_error *err) {
    const struct pm_state *state = &pm_heap.super->state;
    const struct pm_clean *c = &state->clean;
    struct pm_log_digest log = pm_log_digest();
    if (c->crc != crc_of(c) || c->opens != state->opens || c->bitmaps_tag != state->bitmaps_tag)
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: the heap says that it is clean, but its close left no such "
                       "record",
                       pm_heap.dir);
    if (c->heap_bytes != pm_heap.data.size)
        return pm_fail(err, PM_DAMAGE,
                       "%s/heap.0 has %zu bytes, but had %lu at the clean close; was it cut or "
                       "extended?",
                       pm_heap.dir, pm_heap.data.size, (unsigned long)c->heap_bytes);
    if (c->log_entries != log.entries || c->log_sum != log.sum)
        return pm_fail(err, PM_DAMAGE,
                       "%s/booklog.0: %lu entries stand, %lu did at the clean close%s", pm_heap.dir,
                       (unsigned long)log.entries, (unsigned long)c->log_entries,
                       c->log_entries == log.entries ? ", but not the same" : "");
    return PM_OK;
}
