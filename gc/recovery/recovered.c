// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "recovered.h"

#include <stddef.h>

#include "base/crc.h"
#include "media/backing/backing.h"
#include "media/commit/commit.h"
#include "media/journal/instants_format.h"
#include "media/objects_format.h"
#include "media/outside_format.h"

#define PLACE                                                                                      \
    (sizeof(struct pm_shard_state) + sizeof(struct pm_outside) + sizeof(struct pm_objects_state) + \
     sizeof(struct pm_instants_state))
_Static_assert(PLACE + sizeof(struct pm_recovered) <= sizeof((struct pm_state *)0)->reserved,
               "there is room");

static uint32_t crc_of(const struct pm_recovered *r) {
    return pm_crc32c(0, r, offsetof(struct pm_recovered, crc));
}

bool pm_recovered_read(const struct pm_state *state, struct pm_recovered *out) {
    *out = *(const struct pm_recovered *)(const void *)(state->reserved + PLACE);
    return out->time && out->crc == crc_of(out);
}

void pm_recovered_keep(struct pm_recovered r) {
    struct pm_state *state = &pm_heap.super->state;
    struct pm_recovered before;
    uint32_t count = pm_recovered_read(state, &before) ? before.count : 0;
    r.time = pm_commit_clock();
    r.count = count + (count != UINT32_MAX);
    r.crc = crc_of(&r);
    *(struct pm_recovered *)(void *)(state->reserved + PLACE) = r;
}
