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
uint64_t pm_seal_slow(uint32_t value, uint32_t salt);
extern uint8_t pm_crc_instruction; // 1: the processor has it; 0: it was not asked yet, or has not
static inline uint64_t pm_seal(uint32_t value, uint32_t salt) {
    if (!__atomic_load_n(&pm_crc_instruction, __ATOMIC_RELAXED))
        return pm_seal_slow(value, salt);
    uint64_t parts = (uint64_t)value << 32 | salt, sum = UINT32_MAX;
    __asm__("crc32q %1, %0" : "+r"(sum) : "rm"(parts));
    uint32_t crc = ~(uint32_t)sum;
    return (uint64_t)(crc ? crc : 1) << 32 | value;
}
static inline uint32_t pm_unseal(uint64_t word) { return (uint32_t)word; }
static inline bool pm_sealed(uint64_t word, uint32_t salt) {
    return word == pm_seal((uint32_t)word, salt);
}

#endif
