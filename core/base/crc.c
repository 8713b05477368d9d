// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "crc.h"

#include <string.h>

#if __has_include(<sys/platform/x86.h>)
#include <sys/platform/x86.h>
// Uses what the loader found out at start. Asking the processor again costs microseconds in a
// virtual machine.
#define HAS_CRC_INSTRUCTION CPU_FEATURE_ACTIVE(SSE4_2)
#define HAS_PRODUCT (HAS_CRC_INSTRUCTION && CPU_FEATURE_ACTIVE(PCLMULQDQ))
#else
#define HAS_CRC_INSTRUCTION 0
#define HAS_PRODUCT 0
#endif

// Four bits in each step: a table of 64 bytes instead of one kilobyte in every process.
static const uint32_t table[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t len) {
    while (len--) {
        crc ^= *p++;
        crc = table[crc & 15] ^ (crc >> 4);
        crc = table[crc & 15] ^ (crc >> 4);
    }
    return crc;
}

#define WITH_SSE __attribute__((target("sse4.2")))

static inline uint64_t word_at(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

WITH_SSE static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t len) {
    uint64_t wide = crc;
    uint32_t half;
    for (; len >= sizeof wide; p += sizeof wide, len -= sizeof wide)
        wide = __builtin_ia32_crc32di(wide, word_at(p));
    crc = (uint32_t)wide;
    if (len >= sizeof half) {
        memcpy(&half, p, sizeof half);
        crc = __builtin_ia32_crc32si(crc, half);
        p += sizeof half;
        len -= sizeof half;
    }
    while (len--)
        crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}

// An instruction waits for the result of the one before it, and the processor could do three in
// that time. So three parts run side by side. What comes behind a part multiplies its sum by x to
// the power of the bits there, modulo the polynomial. The factors have 33 less in the exponent, and
// are reflected: the last instruction multiplies by 32 more, a product of reflected words by 1.
#define PART ((size_t)1360) // three are a page, but for 16 bytes
#define BEHIND_ONE 0x3f70cc6fu
#define BEHIND_TWO 0x5aa1f3cfu

__attribute__((target("sse4.2,pclmul"))) static inline uint64_t times(uint64_t sum, uint32_t by) {
    typedef long long pair __attribute__((vector_size(16)));
    return (uint64_t)__builtin_ia32_pclmulqdq128((pair){(long long)sum, 0}, (pair){by, 0}, 0)[0];
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t by_parts(uint32_t crc, const uint8_t *p,
                                                                  size_t len) {
    for (; len >= 3 * PART; p += 3 * PART, len -= 3 * PART) {
        uint64_t a = crc, b = 0, c = 0;
        for (const uint8_t *at = p; at != p + PART; at += sizeof a) {
            a = __builtin_ia32_crc32di(a, word_at(at));
            b = __builtin_ia32_crc32di(b, word_at(at + PART));
            c = __builtin_ia32_crc32di(c, word_at(at + 2 * PART));
        }
        uint64_t before = times(a, BEHIND_TWO) ^ times(b, BEHIND_ONE);
        crc = (uint32_t)(__builtin_ia32_crc32di(0, before) ^ c);
    }
    return by_instruction(crc, p, len);
}

uint32_t pm_crc32c(uint32_t crc, const void *data, size_t len) {
    if (HAS_PRODUCT && len >= 3 * PART)
        return ~by_parts(~crc, data, len);
    return ~(HAS_CRC_INSTRUCTION ? by_instruction(~crc, data, len) : by_table(~crc, data, len));
}

uint32_t pm_crc32c_by_table(uint32_t crc, const void *data, size_t len) {
    return ~by_table(~crc, data, len);
}

// The sum of what each four bits of the word add. The steps do not wait for each other: an opening
// checks each entry of the log.
uint8_t pm_crc8(uint8_t crc, uint64_t word) {
    static const uint8_t of[16][16] = {
        // by the place of the four bits, from the lowest
        {0x00, 0x07, 0x0e, 0x09, 0x1c, 0x1b, 0x12, 0x15, 0x38, 0x3f, 0x36, 0x31, 0x24, 0x23, 0x2a,
         0x2d},
        {0x00, 0x70, 0xe0, 0x90, 0xc7, 0xb7, 0x27, 0x57, 0x89, 0xf9, 0x69, 0x19, 0x4e, 0x3e, 0xae,
         0xde},
        {0x00, 0x15, 0x2a, 0x3f, 0x54, 0x41, 0x7e, 0x6b, 0xa8, 0xbd, 0x82, 0x97, 0xfc, 0xe9, 0xd6,
         0xc3},
        {0x00, 0x57, 0xae, 0xf9, 0x5b, 0x0c, 0xf5, 0xa2, 0xb6, 0xe1, 0x18, 0x4f, 0xed, 0xba, 0x43,
         0x14},
        {0x00, 0x6b, 0xd6, 0xbd, 0xab, 0xc0, 0x7d, 0x16, 0x51, 0x3a, 0x87, 0xec, 0xfa, 0x91, 0x2c,
         0x47},
        {0x00, 0xa2, 0x43, 0xe1, 0x86, 0x24, 0xc5, 0x67, 0x0b, 0xa9, 0x48, 0xea, 0x8d, 0x2f, 0xce,
         0x6c},
        {0x00, 0x16, 0x2c, 0x3a, 0x58, 0x4e, 0x74, 0x62, 0xb0, 0xa6, 0x9c, 0x8a, 0xe8, 0xfe, 0xc4,
         0xd2},
        {0x00, 0x67, 0xce, 0xa9, 0x9b, 0xfc, 0x55, 0x32, 0x31, 0x56, 0xff, 0x98, 0xaa, 0xcd, 0x64,
         0x03},
        {0x00, 0x62, 0xc4, 0xa6, 0x8f, 0xed, 0x4b, 0x29, 0x19, 0x7b, 0xdd, 0xbf, 0x96, 0xf4, 0x52,
         0x30},
        {0x00, 0x32, 0x64, 0x56, 0xc8, 0xfa, 0xac, 0x9e, 0x97, 0xa5, 0xf3, 0xc1, 0x5f, 0x6d, 0x3b,
         0x09},
        {0x00, 0x29, 0x52, 0x7b, 0xa4, 0x8d, 0xf6, 0xdf, 0x4f, 0x66, 0x1d, 0x34, 0xeb, 0xc2, 0xb9,
         0x90},
        {0x00, 0x9e, 0x3b, 0xa5, 0x76, 0xe8, 0x4d, 0xd3, 0xec, 0x72, 0xd7, 0x49, 0x9a, 0x04, 0xa1,
         0x3f},
        {0x00, 0xdf, 0xb9, 0x66, 0x75, 0xaa, 0xcc, 0x13, 0xea, 0x35, 0x53, 0x8c, 0x9f, 0x40, 0x26,
         0xf9},
        {0x00, 0xd3, 0xa1, 0x72, 0x45, 0x96, 0xe4, 0x37, 0x8a, 0x59, 0x2b, 0xf8, 0xcf, 0x1c, 0x6e,
         0xbd},
        {0x00, 0x13, 0x26, 0x35, 0x4c, 0x5f, 0x6a, 0x79, 0x98, 0x8b, 0xbe, 0xad, 0xd4, 0xc7, 0xf2,
         0xe1},
        {0x00, 0x37, 0x6e, 0x59, 0xdc, 0xeb, 0xb2, 0x85, 0xbf, 0x88, 0xd1, 0xe6, 0x63, 0x54, 0x0d,
         0x3a},
    };
    word ^= (uint64_t)crc << 56;
    unsigned sum = 0;
#define ADD(i) sum ^= of[i][word >> 4 * (i)&15] ^ of[(i) + 1][word >> (4 * (i) + 4) & 15]
    ADD(0);
    ADD(2);
    ADD(4);
    ADD(6);
    ADD(8);
    ADD(10);
    ADD(12);
    ADD(14);
#undef ADD
    return (uint8_t)sum;
}

uint8_t pm_crc_instruction;

uint64_t pm_seal_slow(uint32_t value, uint32_t salt) {
    uint32_t parts[2] = {salt, value};
    uint32_t crc = pm_crc32c(0, parts, sizeof parts);
    if (HAS_CRC_INSTRUCTION)
        __atomic_store_n(&pm_crc_instruction, 1, __ATOMIC_RELAXED);
    return (uint64_t)(crc ? crc : 1) << 32 | value;
}
