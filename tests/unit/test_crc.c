// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// CRC-32C against published vectors (RFC 3720, appendix B.4) and against a bitwise computation.
#include "base/crc.h"

#include "check.h"

static uint32_t bitwise(uint32_t crc, const uint8_t *p, size_t len) {
    crc = ~crc;
    while (len--) {
        crc ^= *p++;
        for (int i = 0; i < 8; i++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static void test_vectors(void) {
    uint8_t b[32];
    CHECK_EQ(pm_crc32c(0, "", 0), 0);
    CHECK_EQ(pm_crc32c(0, "123456789", 9), 0xe3069283u);
    memset(b, 0, sizeof b);
    CHECK_EQ(pm_crc32c(0, b, 32), 0x8a9136aau);
    memset(b, 0xff, sizeof b);
    CHECK_EQ(pm_crc32c(0, b, 32), 0x62a8ab43u);
    for (unsigned i = 0; i < 32; i++)
        b[i] = (uint8_t)i;
    CHECK_EQ(pm_crc32c(0, b, 32), 0x46dd794eu);
    for (unsigned i = 0; i < 32; i++)
        b[i] = (uint8_t)(31 - i);
    CHECK_EQ(pm_crc32c(0, b, 32), 0x113fdb5cu);
}

static void test_bitwise_and_in_parts(void) {
    uint8_t data[1000];
    for (unsigned i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 167 + (i >> 3));
    for (size_t len = 0; len <= sizeof data; len += 37) {
        uint32_t whole = pm_crc32c(0, data, len);
        CHECK_EQ(whole, bitwise(0, data, len));
        CHECK_EQ(pm_crc32c_by_table(0, data, len), whole);
        CHECK_EQ(pm_crc32c(pm_crc32c(0, data, len / 3), data + len / 3, len - len / 3), whole);
    }
}

// Long ranges go in parts beside each other.
static void test_long_ranges(void) {
    static uint8_t data[3 * 4096 + 8];
    for (unsigned i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 167 + (i >> 3));
    for (size_t from = 0; from < 8; from++)
        for (size_t len = 4000; len <= sizeof data - from; len += len < 4160 ? 1 : 1021)
            CHECK_EQ(pm_crc32c(77, data + from, len), pm_crc32c_by_table(77, data + from, len));
}

static void test_every_flipped_bit_shows(void) {
    uint8_t data[64] = {1, 2, 3};
    uint32_t good = pm_crc32c(0, data, sizeof data);
    for (unsigned bit = 0; bit < 8 * sizeof data; bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(pm_crc32c(0, data, sizeof data) != good);
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

// A sealed word notices every change of one to three bits, and is not valid with another salt.
static void test_words_that_check_themselves(void) {
    uint64_t entry = 0x0123456789abcdef;
    for (unsigned a = 0; a < 64; a++)
        for (unsigned b = a; b < 64; b++)
            for (unsigned c = b; c < 64; c++)
                CHECK(pm_crc8(9, entry) != pm_crc8(9, entry ^ (1ull << a | 1ull << b | 1ull << c)));
    for (uint32_t value = 0; value < 1000; value++) {
        uint64_t word = pm_seal(value, 3);
        CHECK(pm_sealed(word, 3) && pm_unseal(word) == value);
        CHECK(!pm_sealed(word, 4) && word != 0);
        for (unsigned a = 0; a < 64; a++)
            for (unsigned b = a; b < 64; b++)
                CHECK(!pm_sealed(word ^ (1ull << a | 1ull << b), 3));
    }
}

int main(void) {
    RUN(vectors);
    RUN(bitwise_and_in_parts);
    RUN(long_ranges);
    RUN(every_flipped_bit_shows);
    RUN(words_that_check_themselves);
    return CHECK_DONE();
}
