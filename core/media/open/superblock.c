// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "superblock.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/crc.h"
#include "media/heap.h"

// Not time(): it is an indirect function, which each start of a program would have to resolve.
static uint64_t seconds_now(void) {
    struct timespec now;
    return clock_gettime(CLOCK_REALTIME, &now) == 0 ? (uint64_t)now.tv_sec : 0;
}

void pm_superblock_new(struct pm_superblock *super) {
    memset(super, 0, sizeof *super);
    super->magic = PM_SUPER_MAGIC;
    super->version = PM_FORMAT_VERSION;
    super->node_count = 1;
    super->base = PM_HEAP_BASE;
    super->range = PM_HEAP_RANGE;
    super->page_size = PM_PAGE_SIZE;
    super->slab_size = PM_SLAB_SIZE;
    super->created = seconds_now();
    if (getrandom(super->uuid, sizeof super->uuid, GRND_NONBLOCK) != (ssize_t)sizeof super->uuid)
        memcpy(super->uuid, &super->created, sizeof super->created);
    super->node[0] = (struct pm_node_range){0, PM_HEAP_RANGE};
    super->crc = pm_crc32c(0, super, offsetof(struct pm_superblock, crc));
}

struct pm_state_words pm_state_new(void) {
    return (struct pm_state_words){PM_STATE_DIRTY, pm_seal(0, PM_SALT_ROOT_EPOCH)};
}

void pm_slots_new(struct pm_slots *slots) {
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++)
        slots->slot[i] = pm_slot_word(i, 0);
}
