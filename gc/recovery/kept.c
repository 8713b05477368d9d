// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "kept.h"

#include "base/crc.h"
#include "media/backing/backing.h"
#include "pages/extent.h"

#define UNIT_PAGES (PM_SLAB_SIZE >> PM_PAGE_SHIFT)
#define LEAST 1024u // units; a heap that is smaller than this may double many times

static uint64_t pages_in_use(void) {
    uint64_t pages = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pages += pm_heap.shard[i].extents->active.pages;
    return pages;
}

#define GARBAGE (1u << 31) // beside the number of units

static uint32_t word_on_record(void) {
    uint64_t word = pm_heap.super->state.kept;
    return pm_sealed(word, PM_SALT_KEPT) ? pm_unseal(word) : 0;
}

// 0: there is none.
static uint32_t on_record(void) { return word_on_record() & ~GARBAGE; }

bool pm_kept_garbage(void) { return word_on_record() & GARBAGE; }

static bool space_is_short(uint64_t bytes) {
    bool known;
    uint64_t length = 0;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        length += pm_heap.shard[i].data.size;
    uint64_t free_below = length - bytes; // between the extents
    if (pm_heap.limit < bytes + bytes / 8)
        return true;
    return free_below < bytes / 8 &&
           !pm_shard_has_room(&pm_heap.shard[0], bytes / 8 - free_below, 0, &known) && known;
}

bool pm_kept_too_much(bool beside) {
    uint64_t pages = pages_in_use(), units = pages / UNIT_PAGES;
    uint32_t before = on_record();
    return (!beside && before && units > 2ull * before + LEAST) ||
           space_is_short(pages << PM_PAGE_SHIFT);
}

void pm_kept_record(enum pm_kept_how how) {
    struct pm_state *state = &pm_heap.super->state;
    uint32_t before = on_record(), after = (uint32_t)(pages_in_use() / UNIT_PAGES + 1);
    if (how == PM_KEPT_COLLECTED ? !state->kept : how == PM_KEPT_TRUSTED && before)
        return;
    if (how == PM_KEPT_ALL)
        after = (before ? before : after) | GARBAGE;
    // No flush: if the word is lost, the next start without a collection records its own size.
    __atomic_store_n(&state->kept, pm_seal(after, PM_SALT_KEPT), __ATOMIC_RELEASE);
}

uint64_t pm_kept_live(void) {
    uint64_t word = pm_heap.super->state.live;
    return pm_sealed(word, PM_SALT_LIVE) ? (uint64_t)pm_unseal(word) * PM_SLAB_SIZE : 0;
}

// No flush: if the word is lost, an older one is compared with.
void pm_kept_live_record(uint64_t bytes) {
    uint64_t word = pm_seal((uint32_t)(bytes / PM_SLAB_SIZE), PM_SALT_LIVE);
    __atomic_store_n(&pm_heap.super->state.live, word, __ATOMIC_RELEASE);
}
