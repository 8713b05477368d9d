// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "lap_pages.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/geometry.h"
#include "base/os.h"

#define FIRST_SLOTS 4096u // 64 KiB: a lap of usual length
// Of a longer range of zeroes only the pages that the table has already are noted: it was given
// back to the file system, which does not lose that.
#define ZEROES_MOST 1024u

struct slot {
    uint64_t key; // 0: free
    uint64_t sum;
};
static struct slot *table;
static uint64_t slots, used;
static bool unknown; // there is no memory for it

static uint64_t key_of(unsigned file, uint64_t page) { return ((uint64_t)file << 32 | page) + 1; }

// Four sums at a time, for a multiplication takes longer than it keeps the next one waiting.
static uint64_t sum_of(const char *contents) {
    static const uint64_t factor = 0x9e3779b97f4a7c15u;
    uint64_t sum[4] = {1, 2, 3, 4}, word[4];
    for (const char *at = contents; at < contents + PM_PAGE_SIZE; at += sizeof word) {
        memcpy(word, at, sizeof word);
        for (unsigned i = 0; i < 4; i++)
            sum[i] = (sum[i] ^ word[i]) * factor;
        for (unsigned i = 0; i < 4; i++)
            sum[i] ^= sum[i] >> 32;
    }
    return ((sum[0] * factor + sum[1]) * factor + sum[2]) * factor + sum[3];
}

// The page's slot, or the free one where it belongs. The table is at most half full.
static struct slot *find(struct slot *in, uint64_t count, uint64_t key) {
    uint64_t at = key * 0x9e3779b97f4a7c15u >> 20;
    while (in[at & (count - 1)].key && in[at & (count - 1)].key != key)
        at++;
    return &in[at & (count - 1)];
}

static bool grow(void) {
    uint64_t more = slots ? 2 * slots : FIRST_SLOTS;
    struct slot *larger = pm_os_reserve(more * sizeof *larger);
    if (!larger)
        return false;
    for (uint64_t i = 0; i < slots; i++)
        if (table[i].key)
            *find(larger, more, table[i].key) = table[i];
    if (table)
        munmap(table, slots * sizeof *table);
    table = larger;
    slots = more;
    return true;
}

void pm_lap_pages_forget(void) {
    if (slots > FIRST_SLOTS) {
        munmap(table, slots * sizeof *table);
        table = NULL;
        slots = 0;
    } else if (used) {
        memset(table, 0, slots * sizeof *table);
    }
    used = 0;
    unknown = false;
}

static void note(uint64_t key, uint64_t sum) {
    unknown |= 2 * used >= slots && !grow();
    if (unknown)
        return;
    struct slot *s = find(table, slots, key);
    used += !s->key;
    *s = (struct slot){key, sum};
}

void pm_lap_pages_note(unsigned file, uint64_t first, uint64_t pages, const char *from) {
    static const char zeroes[PM_PAGE_SIZE];
    uint64_t zero = from ? 0 : sum_of(zeroes), from_key = key_of(file, first);
    if (!from && pages > ZEROES_MOST) {
        for (uint64_t i = 0; i < slots; i++)
            if (table[i].key && table[i].key - from_key < pages)
                table[i].sum = zero;
        return;
    }
    for (uint64_t i = 0; i < pages; i++)
        note(from_key + i, from ? sum_of(from + i * PM_PAGE_SIZE) : zero);
}

bool pm_lap_pages_differ(unsigned file, uint64_t page, const char *contents) {
    if (unknown)
        return true;
    if (!used)
        return false;
    const struct slot *s = find(table, slots, key_of(file, page));
    return s->key && s->sum != sum_of(contents);
}
