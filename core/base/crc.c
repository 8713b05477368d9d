// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "crc.h"

#include <string.h>

#if __has_include(<sys/platform/x86.h>)
#include <sys/platform/x86.h>
// Uses what the loader found out at start. Asking the processor again costs microseconds in a
// virtual machine.
#define HAS_CRC_INSTRUCTION CPU_FEATURE_ACTIVE(SSE4_2)
#else
#define HAS_CRC_INSTRUCTION 0
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

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p,
                                                                 size_t len) {
    uint64_t wide = crc, word;
    for (; len >= sizeof word; p += sizeof word, len -= sizeof word) {
        memcpy(&word, p, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    while (len--)
        crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}

uint32_t pm_crc32c(uint32_t crc, const void *data, size_t len) {
    return ~(HAS_CRC_INSTRUCTION ? by_instruction(~crc, data, len) : by_table(~crc, data, len));
}

uint32_t pm_crc32c_by_table(uint32_t crc, const void *data, size_t len) {
    return ~by_table(~crc, data, len);
}

uint8_t pm_crc8(uint8_t crc, uint64_t word) {
    static const uint8_t step[16] = {0x00, 0x07, 0x0e, 0x09, 0x1c, 0x1b, 0x12, 0x15,
                                     0x38, 0x3f, 0x36, 0x31, 0x24, 0x23, 0x2a, 0x2d};
    for (int shift = 60; shift >= 0; shift -= 4)
        crc = (uint8_t)(crc << 4 ^ step[(crc >> 4 ^ word >> shift) & 15]);
    return crc;
}

uint64_t pm_seal(uint32_t value, uint32_t salt) {
    uint32_t parts[2] = {salt, value};
    uint32_t crc = pm_crc32c(0, parts, sizeof parts);
    return (uint64_t)(crc ? crc : 1) << 32 | value;
}
