// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "instants.h"

#include <stddef.h>

#include "base/crc.h"
#include "media/objects_format.h"
#include "media/outside_format.h"
#include "media/persist.h"

#define PLACE                                                                                      \
    (sizeof(struct pm_shard_state) + sizeof(struct pm_outside) + sizeof(struct pm_objects_state))
_Static_assert(PLACE + sizeof(struct pm_instants_state) <= sizeof((struct pm_state *)0)->reserved,
               "there is room");

static uint32_t crc_of(const struct pm_instants_state *s) {
    return pm_crc32c(0, s, offsetof(struct pm_instants_state, crc));
}

struct pm_instants_state pm_instants_record(const struct pm_instants *instants, uint64_t time) {
    struct pm_instants_state s = {.instants = *instants, .time = time};
    s.crc = crc_of(&s);
    return s;
}

uint64_t pm_instants_at(void) { return offsetof(struct pm_super_file, state.reserved) + PLACE; }

void pm_instants_keep(struct pm_state *state, const struct pm_instants *instants, uint64_t time) {
    struct pm_instants_state *s = (struct pm_instants_state *)(void *)(state->reserved + PLACE);
    *s = pm_instants_record(instants, time);
    pm_make_durable(s, sizeof *s);
}

bool pm_instants_read(const struct pm_state *state, struct pm_instants *instants, uint64_t *time) {
    const struct pm_instants_state *s = (const void *)(state->reserved + PLACE);
    *instants = s->instants;
    *time = s->time;
    return s->time && s->crc == crc_of(s);
}
