// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "rebased.h"

#include <stddef.h>

#include "base/crc.h"
#include "media/commit/commit.h"
#include "media/journal/instants_format.h"
#include "media/objects_format.h"
#include "media/outside_format.h"
#include "media/recovered_format.h"

#define PLACE                                                                                      \
    (sizeof(struct pm_shard_state) + sizeof(struct pm_outside) + sizeof(struct pm_objects_state) + \
     sizeof(struct pm_instants_state) + sizeof(struct pm_recovered))
_Static_assert(PLACE + sizeof(struct pm_rebased) <= sizeof((struct pm_state *)0)->reserved,
               "there is room");

static uint32_t crc_of(const struct pm_rebased *r) {
    return pm_crc32c(0, r, offsetof(struct pm_rebased, crc));
}

bool pm_rebased_read(const struct pm_state *state, struct pm_rebased *out) {
    *out = *(const struct pm_rebased *)(const void *)(state->reserved + PLACE);
    return out->time && out->crc == crc_of(out);
}

void pm_rebased_count(struct pm_state *state, uint64_t words, bool other_build) {
    struct pm_rebased r;
    if (!pm_rebased_read(state, &r))
        r = (struct pm_rebased){0};
    r.time = pm_commit_clock();
    r.words = words;
    r.words_ever += words;
    r.count += r.count != UINT32_MAX;
    r.other_build = other_build;
    r.crc = crc_of(&r);
    *(struct pm_rebased *)(void *)(state->reserved + PLACE) = r;
}
