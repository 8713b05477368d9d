// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "page_sums.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/geometry.h"
#include "base/os.h"
#include "journal_format.h"

#define FIRST_SLOTS 4096u     // 160 KiB
#define KEPT_SLOTS (1u << 20) // 40 MiB, for 2 GiB of pages
// Of a longer range of zeroes only the pages that the table has already are noted.
#define ZEROES_MOST 1024u

struct sum {
    uint64_t word[2];
};
struct slot {
    uint64_t key; // 0: free
    struct sum sum;
    struct sum before; // if TAKEN: of the last commit
};
// In a key, beside file and page.
#define TAKEN ((uint64_t)1 << 63)  // the commit that is being made has the page
#define BACKED ((uint64_t)1 << 62) // a commit in force has written it, so the file has space for it
#define NONE ((uint64_t)1 << 61)   // no commit in force has written it
#define FLAGS (TAKEN | BACKED | NONE)
static struct slot *table;
static uint64_t slots, used;
static bool unknown; // there was no memory for it, so it lacks pages of the lap

static uint64_t key_of(unsigned file, uint64_t page) { return ((uint64_t)file << 32 | page) + 1; }

static const char zeroes[PM_PAGE_SIZE];

#define FACTOR 0x9e3779b97f4a7c15u

static inline uint64_t mix(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * FACTOR;
    return sum ^ sum >> 32;
}

// Four sums at a time, for a multiplication takes longer than it keeps the next one waiting; and
// without a loop over them, which -O2 would keep, and which takes four times as long. Two pages
// that differ in one word have other sums; else the chance that they have the same is 2^-64 for
// one half, and as much for the other.
static struct sum sum_of(const char *contents) {
    uint64_t a = 1, b = 2, c = 3, d = 4, word[4];
    for (const char *at = contents; at < contents + PM_PAGE_SIZE; at += sizeof word) {
        memcpy(word, at, sizeof word);
        a = mix(a, word[0]);
        b = mix(b, word[1]);
        c = mix(c, word[2]);
        d = mix(d, word[3]);
    }
    return (struct sum){{a * FACTOR + b, c * FACTOR + d}};
}

// Words of the superblock are the journal's own: they change with each commit, and none says them.
static struct sum sum_of_page(unsigned file, uint64_t page, const char *contents) {
    static char copy[PM_PAGE_SIZE];
    if (!pm_journal_has_own_words(file, page))
        return sum_of(contents);
    memcpy(copy, contents, sizeof copy);
    memset(copy + PM_JOURNAL_OWN_WORDS, 0, PM_JOURNAL_OWN_BYTES);
    return sum_of(copy);
}

static bool same(struct sum a, struct sum b) {
    return a.word[0] == b.word[0] && a.word[1] == b.word[1];
}

// The page's slot, or the free one where it belongs. The table is at most half full.
static struct slot *find(struct slot *in, uint64_t count, uint64_t key) {
    uint64_t at = key * FACTOR >> 20;
    while (in[at & (count - 1)].key && (in[at & (count - 1)].key & ~FLAGS) != key)
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
            *find(larger, more, table[i].key & ~FLAGS) = table[i];
    if (table)
        munmap(table, slots * sizeof *table);
    table = larger;
    slots = more;
    return true;
}

void pm_sums_forget(void) {
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

void pm_sums_trim(void) {
    if (unknown || slots > KEPT_SLOTS)
        pm_sums_forget();
}

// NULL: there is no memory for it.
static struct slot *slot_for(uint64_t key) {
    unknown |= 2 * used >= slots && !grow();
    if (unknown)
        return NULL;
    struct slot *s = find(table, slots, key);
    used += !s->key;
    s->key = s->key ? s->key : key | NONE;
    return s;
}

static void take(struct slot *s, struct sum now) {
    if (!(s->key & TAKEN))
        s->before = s->sum;
    s->sum = now;
    s->key |= TAKEN;
}

void pm_sums_take(unsigned file, uint64_t first, uint64_t pages, const char *from) {
    for (uint64_t i = 0; i < pages; i++) {
        struct slot *s = slot_for(key_of(file, first + i));
        if (!s)
            return;
        take(s, sum_of_page(file, first + i, from + i * PM_PAGE_SIZE));
    }
}

void pm_sums_undo(void) {
    for (uint64_t i = 0; i < slots && !unknown; i++)
        if (table[i].key & TAKEN) {
            table[i].sum = table[i].before;
            table[i].key &= ~TAKEN;
        }
}

static void note_zeroes(unsigned file, uint64_t first, uint64_t pages) {
    struct sum sum = sum_of_page(file, first, zeroes);
    uint64_t from_key = key_of(file, first);
    for (uint64_t i = 0; i < slots && pages > ZEROES_MOST; i++)
        if (table[i].key && (table[i].key & ~FLAGS) - from_key < pages)
            table[i] = (struct slot){.key = table[i].key & ~FLAGS, .sum = sum};
    for (uint64_t i = 0; i < pages && pages <= ZEROES_MOST; i++) {
        struct slot *s = slot_for(from_key + i);
        if (s)
            *s = (struct slot){.key = from_key + i, .sum = sum};
    }
}

// What was taken has its sum already: the last one, if the commit has the page twice.
void pm_sums_note(unsigned file, uint64_t first, uint64_t pages, const char *from) {
    static struct sum zero;
    if (!zero.word[0])
        zero = sum_of(zeroes);
    if (!from) {
        note_zeroes(file, first, pages);
        return;
    }
    for (uint64_t i = 0; i < pages; i++) {
        uint64_t key = key_of(file, first + i);
        struct slot *s = slot_for(key);
        if (!s)
            return;
        if (!(s->key & TAKEN))
            s->sum = sum_of_page(file, first + i, from + i * PM_PAGE_SIZE);
        s->key = key | (same(s->sum, zero) ? 0 : BACKED);
    }
}

static struct slot *slot_of(unsigned file, uint64_t page) {
    struct slot *s = used ? find(table, slots, key_of(file, page)) : NULL;
    return s && s->key ? s : NULL;
}

enum pm_sum_is pm_sums_ask(unsigned file, uint64_t page, const char *contents) {
    if (unknown) // a page of the lap may be missing
        return PM_SUM_OTHER;
    struct slot *s = slot_of(file, page);
    if (!s || (s->key & FLAGS) == NONE)
        return PM_SUM_NONE;
    struct sum now = sum_of_page(file, page, contents);
    if (same(s->sum, now))
        return PM_SUM_SAME;
    take(s, now);
    return PM_SUM_OTHER;
}

bool pm_sums_taken(unsigned file, uint64_t page) {
    const struct slot *s = slot_of(file, page);
    return unknown || (s && s->key & TAKEN);
}

bool pm_sums_known(unsigned file, uint64_t first, uint64_t pages) {
    bool known = !unknown;
    for (uint64_t i = 0; i < pages && known; i++) {
        const struct slot *s = slot_of(file, first + i);
        known = s && (s->key & FLAGS) != NONE;
    }
    return known;
}

bool pm_sums_backed(unsigned file, uint64_t first, uint64_t pages) {
    bool backed = !unknown;
    for (uint64_t i = 0; i < pages && backed; i++) {
        const struct slot *s = slot_of(file, first + i);
        backed = s && s->key & BACKED;
    }
    return backed;
}
