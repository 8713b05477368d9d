// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "close_record.h"

#include <stddef.h>

#include "base/crc.h"
#include "media/heap.h"
#include "media/log/log.h"
#include "media/persist.h"

static uint32_t crc_of(const struct pm_clean *c) {
    return pm_crc32c(0, c, offsetof(struct pm_clean, crc));
}

// Each shard has a record of its own.
static struct pm_clean *record_of(const struct pm_shard *s) {
    struct pm_state *state = &pm_heap.super->state;
    struct pm_shard_state *more = (struct pm_shard_state *)(void *)state->reserved;
    unsigned n = pm_shard_number(s);
    return n ? &more->clean[n - 1] : &state->clean;
}

static void write_record(const struct pm_shard *s, uint64_t bytes, const uint32_t *images_crc) {
    const struct pm_state *state = &pm_heap.super->state;
    struct pm_log_digest log = pm_log_digest(s);
    struct pm_clean c = {.opens = state->opens,
                         .heap_bytes = bytes,
                         .log_entries = log.entries,
                         .log_sum = log.sum,
                         .bitmaps_tag = state->bitmaps_tag,
                         .images_crc = images_crc ? *images_crc : 0,
                         .images_known = images_crc != NULL};
    c.crc = crc_of(&c);
    *record_of(s) = c;
    pm_make_durable(record_of(s), sizeof c);
}

void pm_close_record_write(bool empty, const uint32_t *images_crc) {
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        write_record(s, empty && !s->data.length ? 0 : s->data.size, images_crc);
    }
}

static int check_record(const struct pm_shard *s, struct pm_error *err) {
    const struct pm_state *state = &pm_heap.super->state;
    const struct pm_clean *c = record_of(s);
    struct pm_log_digest log = pm_log_digest(s);
    if (c->crc != crc_of(c) || c->opens != state->opens || c->bitmaps_tag != state->bitmaps_tag)
        return pm_fail(err, PM_DAMAGE,
                       "%s/superblock: the state is clean, but the close record is missing or "
                       "belongs to another close",
                       pm_heap.dir);
    if (c->heap_bytes != s->data.size)
        return pm_fail(err, PM_DAMAGE,
                       "%s/%s has %zu bytes, but had %lu at the clean close; was it truncated "
                       "or extended?",
                       pm_heap.dir, s->data.name, s->data.size, (unsigned long)c->heap_bytes);
    if (c->log_entries != log.entries || c->log_sum != log.sum)
        return pm_fail(err, PM_DAMAGE, "%s/%s: %lu entries stand, %lu did at the clean close%s",
                       pm_heap.dir, s->log.name, (unsigned long)log.entries,
                       (unsigned long)c->log_entries,
                       c->log_entries == log.entries ? ", but not the same" : "");
    return PM_OK;
}

int pm_close_record_check(struct pm_error *err) {
    int status = PM_OK;
    for (unsigned i = 0; i < pm_heap.shards && status == PM_OK; i++)
        status = check_record(&pm_heap.shard[i], err);
    return status;
}
