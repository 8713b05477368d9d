// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How many words of data that holds no pointers a conservative collector takes for one, by what the
// data are, how large the heap is, and what is asked of a word. Nothing is allocated: a word is
// drawn, and compared with the addresses that a heap of that size has.
//
//   precision [WORDS]    draws so many words of each kind (default: 200 million)
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BASE ((uint64_t)64 << 40) // where heaps lie
#define TAG_SHIFT 48              // the bits above may be a tag,
#define LOW_TAGS 16u              // and a tagged word leads so far from the start of a block
#define GIB ((uint64_t)1 << 30)

static uint64_t seed = 88172645463325252u;
static uint64_t random_bits(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed * 2685821657736338717u;
}

static uint64_t bits_of(double x) {
    uint64_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

static double uniform(void) { return (double)(random_bits() >> 11) / (double)(1ull << 53); }

static uint64_t noise(uint64_t i) {
    (void)i;
    return random_bits();
}
static uint64_t fractions(uint64_t i) {
    (void)i;
    return bits_of(uniform());
}
static uint64_t normals(uint64_t i) {
    (void)i;
    return bits_of(sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform()) * 1e3);
}
static uint64_t prices(uint64_t i) {
    (void)i;
    return bits_of((double)(random_bits() % 10000000) / 100);
}
static uint64_t floats(uint64_t i) {
    float pair[2] = {(float)uniform(), (float)uniform() * 1000};
    uint64_t word;
    (void)i;
    memcpy(&word, pair, sizeof word);
    return word;
}
static uint64_t text(uint64_t i) {
    static const char letters[] = "etaoin shrdlu etaoin cmfwyp vbgkjqxz.,ETAOIN0123456789\n";
    uint64_t word = 0;
    (void)i;
    for (unsigned k = 0; k < 8; k++)
        word = word << 8 | (uint8_t)letters[random_bits() % (sizeof letters - 1)];
    return word;
}
static uint64_t counters(uint64_t i) { return i; }
static uint64_t times(uint64_t i) { return 1790000000000000000u + i * 12345; }
static uint64_t halves(uint64_t i) { return random_bits() << 32 | (uint32_t)i; }
// Addresses of the stack and of libraries, as blocks that were used before hold them.
static uint64_t elsewhere(uint64_t i) {
    (void)i;
    return 0x7f0000000000 + (random_bits() & 0xfffffffff8);
}

static const struct kind {
    const char *name;
    uint64_t (*word)(uint64_t i);
} kinds[] = {{"random bytes, hashes", noise},
             {"doubles from 0 to 1", fractions},
             {"doubles, normal", normals},
             {"doubles, prices", prices},
             {"pairs of floats", floats},
             {"text", text},
             {"counters", counters},
             {"times in ns", times},
             {"random 32 bits, number", halves},
             {"addresses elsewhere", elsewhere}};

static const uint64_t sizes[] = {1, 16, 128, 1024};
#define SIZES (sizeof sizes / sizeof *sizes)
static const uint64_t blocks[] = {64, 1024, 32768};
#define BLOCKS (sizeof blocks / sizeof *blocks)

struct hits {
    uint64_t plain, inside, start[BLOCKS];
};

static void count(struct hits *h, uint64_t word, uint64_t size) {
    uint64_t address = word & ((1ull << TAG_SHIFT) - 1);
    if (address - BASE >= size)
        return;
    h->plain += address == word;
    h->inside++;
    for (size_t b = 0; b < BLOCKS; b++)
        h->start[b] += address % blocks[b] < LOW_TAGS;
}

static void show(const char *name, uint64_t size, const struct hits *h, double words) {
    printf("| %s | %" PRIu64 " | %.3g | %.3g |", name, size, (double)h->plain / words,
           (double)h->inside / words);
    for (size_t b = 0; b < BLOCKS; b++)
        printf(" %.3g |", (double)h->start[b] / words);
    putchar('\n');
}

int main(int argc, char **argv) {
    uint64_t words = argc > 1 ? strtoull(argv[1], NULL, 10) : 200000000;
    printf(
        "| data | GiB | plain | tagged, inside | tagged, starts of 64 B | of 1 KiB | of 32 KiB |\n"
        "|---|---|---|---|---|---|---|\n");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct hits hits[SIZES] = {{0}};
        for (uint64_t i = 0; i < words; i++) {
            uint64_t word = kinds[k].word(i);
            for (size_t s = 0; s < SIZES; s++)
                count(&hits[s], word, sizes[s] * GIB);
        }
        for (size_t s = 0; s < SIZES; s++)
            show(kinds[k].name, sizes[s], &hits[s], (double)words);
    }
    return 0;
}
