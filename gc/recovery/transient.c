// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "transient.h"

#include "marking/words.h"
#include "media/outside.h"
#include "media/persist.h"
#include "roots/objects_record.h"
#include "used.h"
#include "workers.h"

static struct pm_outside_range range[PM_OUTSIDE_RANGES];
static unsigned ranges;
static struct pm_high_halves high; // of those that are gone

// False: nothing is to be cleared.
static bool find_ranges(void) {
    uint64_t from = UINT64_MAX, to = 0;
    ranges = pm_outside_read(range);
    for (unsigned i = 0; i < ranges; i++) {
        bool gone = pm_transient_is(range[i].kind);
        from = gone && range[i].from < from ? range[i].from : from;
        to = gone && range[i].to > to ? range[i].to : to;
    }
    if (from >= to)
        return false;
    high = pm_high_halves(from, to - from, false);
    pm_record_read();
    return true;
}

bool pm_transient_takes(uint32_t kind, uint64_t word) {
    bool keeps_files = pm_options.transient.number == PM_TRANSIENT_STACKS;
    bool is_file = kind == PM_OUTSIDE_THREADS && keeps_files && pm_outside_was_forgotten(word);
    return pm_transient_is(kind) && !is_file;
}

// Ranges overlap, and the first is taken. A library may have come to where something else was.
static bool leads_to_what_is_gone(uint64_t word) {
    for (unsigned i = 0; i < ranges; i++)
        if (word - range[i].from < range[i].to - range[i].from)
            return pm_transient_takes(range[i].kind, word) && word - pm_base >= pm_range &&
                   !pm_record_lay_at(word);
    return false;
}

// ---- one shard ----------------------------------------------------------------------------------

struct clearing {
    bool write;
    uint64_t words[PM_SHARDS];
};
struct shard_clearing {
    bool write;
    uint64_t words;
    struct pm_gather stored; // and not flushed
};

// Where a disk is waited for, words that lie near each other are flushed with one call.
#define NEAR (64 << 10)

static void flush(struct pm_gather *g) {
    if (g->from)
        pm_flush(g->from, (size_t)(g->to - g->from));
    *g = (struct pm_gather){0};
}

static void take(struct shard_clearing *c, uint64_t *word) {
    if (!leads_to_what_is_gone(*word))
        return;
    c->words++;
    if (!c->write)
        return;
    if (c->stored.from && (const char *)word - c->stored.from >= NEAR)
        flush(&c->stored);
    *word = 0;
    pm_gather_add(&c->stored, word, sizeof *word);
}

static void clear_piece(const struct pm_piece *p, void *clearing) {
    uint64_t *word = pm_heap_at(p->block + p->from), *end = word + (p->to - p->from) / sizeof *word;
    for (; end - word >= 4; word += 4)
        for (unsigned near = pm_words_near(word, high); near; near &= near - 1)
            take(clearing, word + __builtin_ctz(near));
    for (; word < end; word++)
        take(clearing, word);
}

static void clear_shard(unsigned shard, bool caller, void *arg) {
    struct clearing *all = arg;
    struct shard_clearing c = {.write = all->write};
    (void)caller;
    pm_used_each(&pm_heap.shard[shard], clear_piece, &c);
    flush(&c.stored);
    if (c.write && c.words)
        pm_drain();
    all->words[shard] = c.words;
}

uint64_t pm_transient_clear(unsigned threads, bool write) {
    struct clearing all = {.write = write};
    uint64_t words = 0;
    if (!find_ranges())
        return 0;
    pm_workers_run(threads, pm_heap.shards, clear_shard, &all);
    for (unsigned i = 0; i < pm_heap.shards; i++)
        words += all.words[i];
    return words;
}
