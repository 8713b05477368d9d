// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "feature.h"

#include <stddef.h>

#include "base/crc.h"
#include "heap.h"
#include "persist.h"

static uint32_t crc_of(const struct pm_superblock *super) {
    return pm_crc32c(0, super, offsetof(struct pm_superblock, crc));
}

void pm_feature_set(uint64_t bits) {
    struct pm_superblock *super = &pm_heap.super->super;
    uint64_t incompat = super->incompat | bits;
    if (super->incompat != incompat)
        pm_commit_u64(&super->incompat, incompat);
    uint32_t crc = crc_of(super);
    if (super->crc != crc) {
        __atomic_store_n(&super->crc, crc, __ATOMIC_RELEASE);
        pm_make_durable(&super->crc, sizeof crc);
    }
}

void pm_feature_need(uint64_t bits) {
    struct pm_lock *lock = &pm_heap.shard[0].lock;
    if (!pm_heap_on_media() || (pm_heap.super->super.incompat & bits) == bits)
        return;
    pm_lock(lock);
    pm_feature_set(bits);
    pm_unlock(lock);
}

void pm_feature_flush_inherited(void) {
    pm_flush(&pm_heap.super->super, sizeof pm_heap.super->super);
}

// A cut between the two stores may be followed by another one, at the next bit: so any of the bits
// may be newer than the checksum.
bool pm_superblock_is_whole(const struct pm_superblock *super) {
    struct pm_superblock before = *super;
    uint64_t later = super->incompat & PM_INCOMPAT_KNOWN, without = 0;
    do {
        before.incompat = super->incompat & ~without;
        if (super->crc == crc_of(&before))
            return true;
        without = (without - later) & later; // the next subset
    } while (without);
    return false;
}
