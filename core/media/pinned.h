// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The words on media that say which pinned blocks are allocated (kind_format.h draws them). A word
// is changed by compare-and-swap: it has the bits of blocks of several threads, and a publish
// changes it while other threads allocate. So no lock is needed, and a lane notes which bits to set
// and to clear, not a word.
//
// A place is what a lane has in pm_lane_store.where, with PM_PLACE_PINNED: the file in bit 61
// (1: slabs.N, 0: morph.N), the shard from bit 40 on, and the word's offset in the file in bytes.
#ifndef PM_PINNED_WORDS_H
#define PM_PINNED_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/crc.h"

#define PM_PIN_IN_SLABS (1ull << 61)
#define PM_PIN_SHARD_SHIFT 40

// Bits to set and to clear, as the value of a lane's store.
#define PM_PIN_SET(mask) ((uint64_t)(mask))
#define PM_PIN_CLEAR(mask) ((uint64_t)(mask) << 32)

// The word at a place. NULL: the place is outside the heap's files.
uint64_t *pm_pin_word(uint64_t place);
// What the word seals; *good becomes whether it is one that PMAlloc wrote.
uint32_t pm_pin_read(uint64_t place, bool *good);
// Stores `bits`, at the making of a table. Not flushed.
void pm_pin_write(uint64_t place, uint32_t bits);
// Changes the word and flushes it, if it changes. It is durable after a drain. False: the word was
// so already.
bool pm_pin_change(uint64_t place, uint64_t change);
// The same of a word whose address and salt are known. Nothing is flushed.
static inline __attribute__((always_inline)) bool pm_pin_change_at(uint64_t *at, uint32_t salt,
                                                                   uint64_t change) {
    uint64_t old = __atomic_load_n(at, __ATOMIC_RELAXED), word;
    do {
        uint32_t bits = (pm_unseal(old) | (uint32_t)change) & ~(uint32_t)(change >> 32);
        if (bits == pm_unseal(old))
            return false;
        word = pm_seal(bits, salt);
        // Release: who finds the block allocated finds its bytes.
    } while (
        !__atomic_compare_exchange_n(at, &old, word, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
    return true;
}

#endif
