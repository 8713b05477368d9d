// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// CRC-32C, by the processor's instruction where it has one: opening a heap checks some thousand words.
#ifndef PM_CRC_H
#define PM_CRC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Continues `crc` (0 to start) over `len` bytes.
uint32_t pm_crc32c(uint32_t crc, const void *data, size_t len);
// The same without the instruction; for processors that lack it, and for tests.
uint32_t pm_crc32c_by_table(uint32_t crc, const void *data, size_t len);

// Continues an 8-bit CRC (polynomial 0x07) over one word, high bits first: finds any three flipped bits in it.
uint8_t pm_crc8(uint8_t crc, uint64_t word);

// A 32-bit value in a word that checks itself, so that one 8-byte store can commit it: the value below, its CRC-32C
// above. `salt` says which word it is, so that one does not pass for another. Zero is never such a word.
uint64_t pm_seal(uint32_t value, uint32_t salt);
static inline uint32_t pm_unseal(uint64_t word) { return (uint32_t)word; }
static inline bool pm_sealed(uint64_t word, uint32_t salt) {
    return word == pm_seal((uint32_t)word, salt);
}

#endif
