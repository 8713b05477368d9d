// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Checksums. CRC-32C uses the processor's instruction if there is one, because opening a heap
// checks thousands of words.
#ifndef PM_CRC_H
#define PM_CRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Continues `crc` (0 to start) over `len` bytes.
uint32_t pm_crc32c(uint32_t crc, const void *data, size_t len);
// The same without the instruction; for processors that lack it, and for tests.
uint32_t pm_crc32c_by_table(uint32_t crc, const void *data, size_t len);

// Continues an 8-bit CRC (polynomial 0x07) over one word, high bits first. It finds any one, two or
// three flipped bits.
uint8_t pm_crc8(uint8_t crc, uint64_t word);

// Seals a 32-bit value: returns a word that checks itself, so that one 8-byte store can commit the
// value. The low half is the value, the high half its CRC-32C. `salt` says which word it is, so
// that no word passes for another. A sealed word is never 0.
uint64_t pm_seal(uint32_t value, uint32_t salt);
static inline uint32_t pm_unseal(uint64_t word) { return (uint32_t)word; }
static inline bool pm_sealed(uint64_t word, uint32_t salt) {
    return word == pm_seal((uint32_t)word, salt);
}

#endif
