// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "typed_words.h"

#include "base/crc.h"
#include "media/heap.h"
#include "media/journal/instants_format.h"
#include "media/objects_format.h"
#include "media/outside_format.h"
#include "media/persist.h"
#include "media/rebased_format.h"
#include "media/recovered_format.h"

#define PLACE                                                                                      \
    (sizeof(struct pm_shard_state) + sizeof(struct pm_outside) + sizeof(struct pm_objects_state) + \
     sizeof(struct pm_instants_state) + sizeof(struct pm_recovered) + sizeof(struct pm_rebased))
_Static_assert(PLACE + sizeof(struct pm_typed_words) <= sizeof((struct pm_state *)0)->reserved,
               "there is room");

static uint64_t *lines(void) {
    return ((struct pm_typed_words *)(void *)(pm_heap.super->state.reserved + PLACE))->line;
}

// Of an entry.
static uint32_t words_of(uint64_t entry) { return (uint32_t)entry & 0xff; }
static uint32_t line_of(uint64_t entry) { return (uint32_t)entry & ~0xffu; } // and its type

int pm_typed_words_check(struct pm_error *err) {
    for (unsigned i = 0; i < PM_TYPED_LINES; i++) {
        uint64_t entry = lines()[i];
        bool whole =
            pm_sealed(entry, PM_SALT_TYPED_WORDS) && words_of(entry) && line_of(entry) >> 16;
        if (entry && !whole)
            return pm_fail(err, PM_DAMAGE,
                           "%.300s/superblock: entry %u of the transient words is damaged",
                           pm_heap.dir, i);
    }
    return PM_OK;
}

bool pm_typed_words_any(void) {
    for (unsigned i = 0; i < PM_TYPED_LINES; i++)
        if (lines()[i])
            return true;
    return false;
}

void pm_typed_words_each(uint16_t type, void (*fn)(uint64_t at, void *arg), void *arg) {
    for (unsigned i = 0; i < PM_TYPED_LINES; i++) {
        uint64_t entry = lines()[i], line = line_of(entry) >> 8 & 0xff;
        if (line_of(entry) >> 16 != type)
            continue;
        for (unsigned word = 0; word < 8; word++)
            if (words_of(entry) >> word & 1)
                fn(line * PM_TYPED_LINE + word * sizeof(uint64_t), arg);
    }
}

// The entry of a line, or a free one.
static uint64_t *entry_for(uint32_t line) {
    uint64_t *free = NULL;
    for (unsigned i = PM_TYPED_LINES; i--;) {
        if (lines()[i] && line_of(lines()[i]) == line)
            return &lines()[i];
        free = lines()[i] ? free : &lines()[i];
    }
    return free;
}

static uint32_t line_at(uint16_t type, uint64_t at) {
    return (uint32_t)type << 16 | (uint32_t)(at / PM_TYPED_LINE) << 8;
}

static uint32_t bit_at(uint64_t at) { return 1u << (at % PM_TYPED_LINE / sizeof(uint64_t)); }

bool pm_typed_word_is(uint16_t type, uint64_t at) {
    const uint64_t *entry = type && at < PM_TYPED_BYTES ? entry_for(line_at(type, at)) : NULL;
    return entry && words_of(*entry) & bit_at(at);
}

bool pm_typed_word_set(uint16_t type, uint64_t at, bool on) {
    uint32_t line = line_at(type, at), bit = bit_at(at);
    uint64_t *entry = entry_for(line);
    if (!entry)
        return !on;
    uint32_t before = words_of(*entry);
    uint32_t words = on ? before | bit : before & ~bit;
    if (words != before)
        pm_commit_u64(entry, words ? pm_seal(line | words, PM_SALT_TYPED_WORDS) : 0);
    return true;
}
