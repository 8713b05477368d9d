// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "media.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLUSHES 16384u

struct world *world;

// What each thread has flushed and not yet drained: the stores of a line with numbers below `upto`.
// It is lost when the process ends.
static struct flush {
    uint32_t file, line;
    uint64_t upto;
} flushes[THREADS][FLUSHES];
static uint32_t flush_count[THREADS];

static void full(const char *what) {
    fprintf(stderr, "crash: the simulator's table of %s is full\n", what);
    abort();
}

void media_init(void) {
    for (uint32_t i = 1; i < POOL; i++)
        world->pool[i].next = i + 1 < POOL ? i + 1 : 0;
    world->pool_free = 1;
}

static uint64_t word_hash(unsigned file, uint32_t word, uint64_t value) {
    return value ? mix64(mix64((uint64_t)file << 32 | word) ^ value) : 0;
}

static void set_media(unsigned file, uint32_t word, uint64_t value) {
    uint64_t *at = &world->shadow[file].media[word];
    world->media_hash ^= word_hash(file, word, *at) ^ word_hash(file, word, value);
    *at = value;
}

static void mark_dirty(unsigned file, uint32_t number) {
    if (world->dirty_count == DIRTY_MAX)
        full("dirty lines");
    world->dirty[world->dirty_count] = (struct line_ref){file, number};
    world->shadow[file].line[number].place = ++world->dirty_count;
    if (world->dirty_count > world->max_dirty)
        world->max_dirty = world->dirty_count;
}

static void mark_clean(struct line *line) {
    uint32_t at = line->place - 1;
    struct line_ref moved = world->dirty[--world->dirty_count];
    world->dirty[at] = moved;
    world->shadow[moved.file].line[moved.line].place = at + 1;
    line->place = 0;
}

void media_store(unsigned file, uint32_t word, uint64_t value, uint64_t group) {
    struct shadow *s = &world->shadow[file];
    struct line *line = &s->line[word / LINE_WORDS];
    s->now[word] = value;
    world->stores++;
    if (world->eadr) {
        set_media(file, word, value);
        return;
    }
    uint32_t index = world->pool_free;
    if (!index)
        full("pending stores");
    world->pool_free = world->pool[index].next;
    world->pool[index] = (struct store){0, word, value, group != line->group};
    line->group = group;
    if (line->count++)
        world->pool[line->last].next = index;
    else
        line->first = index;
    line->last = index;
    if (!line->place)
        mark_dirty(file, word / LINE_WORDS);
    if (line->count > world->max_line_stores)
        world->max_line_stores = line->count;
}

// Takes the first `count` pending stores from the line. They become durable, or are forgotten.
static void retire(unsigned file, struct line *line, uint32_t count, bool durable) {
    for (; count; count--) {
        uint32_t index = line->first;
        struct store *store = &world->pool[index];
        if (durable)
            set_media(file, store->word, store->value);
        line->first = store->next;
        line->count--;
        line->gone++;
        store->next = world->pool_free;
        world->pool_free = index;
    }
    if (!line->count && line->place)
        mark_clean(line);
    if (!line->count && line->tainted) {
        line->tainted = false;
        world->tainted--;
    }
}

void media_durable(unsigned file, uint32_t word, uint64_t value) {
    struct line *line = &world->shadow[file].line[word / LINE_WORDS];
    retire(file, line, line->count, true); // the line is written back whole
    world->shadow[file].now[word] = value;
    set_media(file, word, value);
}

void media_hint(unsigned file, uint32_t word, uint64_t value) {
    world->shadow[file].now[word] = value;
    set_media(file, word, value);
}

void media_flush(unsigned thread, unsigned file, uint32_t first_line, uint32_t last_line) {
    for (uint32_t i = first_line; i <= last_line; i++) {
        const struct line *line = &world->shadow[file].line[i];
        if (!line->count)
            continue;
        if (flush_count[thread] == FLUSHES)
            full("flushes");
        flushes[thread][flush_count[thread]++] = (struct flush){file, i, line->gone + line->count};
    }
}

void media_drain(unsigned thread) {
    for (uint32_t i = 0; i < flush_count[thread]; i++) {
        const struct flush *f = &flushes[thread][i];
        struct line *line = &world->shadow[f->file].line[f->line];
        if (f->upto > line->gone)
            retire(f->file, line, (uint32_t)(f->upto - line->gone), true);
    }
    flush_count[thread] = 0;
}

static void taint(struct line *line) {
    world->tainted += line->count && !line->tainted;
    line->tainted |= line->count != 0;
}

void media_taint(unsigned file, uint32_t first_line, uint32_t last_line) {
    for (uint32_t i = first_line; i <= last_line; i++)
        taint(&world->shadow[file].line[i]);
}

void media_taint_flushed(unsigned thread) {
    for (uint32_t i = 0; i < flush_count[thread]; i++)
        taint(&world->shadow[flushes[thread][i].file].line[flushes[thread][i].line]);
}

bool media_flushed(unsigned thread, unsigned file) {
    bool found = false;
    for (uint32_t i = 0; i < flush_count[thread]; i++)
        found |= flushes[thread][i].file == file;
    return found;
}

void media_punch(unsigned file, uint64_t from, uint64_t to) {
    for (uint64_t word = from / WORD; word < to / WORD && word < SHADOW_WORDS; word++) {
        struct line *line = &world->shadow[file].line[word / LINE_WORDS];
        retire(file, line, line->count, false);
        world->shadow[file].now[word] = 0;
        set_media(file, (uint32_t)word, 0);
    }
}

// ---- images -------------------------------------------------------------------------------------

// The number of possible images: for each dirty line, any prefix of its pending stores. Stops
// counting above `limit`.
static uint64_t combinations(uint64_t limit) {
    uint64_t product = 1;
    for (uint32_t i = 0; i < world->dirty_count && product <= limit; i++) {
        const struct line_ref *d = &world->dirty[i];
        product *= world->shadow[d->file].line[d->line].count + 1ull;
    }
    return product;
}

static uint32_t pending(uint32_t dirty) {
    const struct line_ref *d = &world->dirty[dirty];
    return world->shadow[d->file].line[d->line].count;
}

static void choose(uint64_t choice, uint32_t *prefix, uint64_t *random) {
    uint32_t n = world->dirty_count;
    bool single = choice >= 2 && choice < 2 + 2ull * n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t count = pending(i);
        if (choice < 2)
            prefix[i] = choice ? count : 0;
        else if (single)
            prefix[i] = ((choice - 2) / 2 == i) == (choice % 2 == 0) ? count : 0;
        else // half of them none or all of the line's stores: there most wrong orders show
            prefix[i] = (uint32_t)draw(random, 2) ? (uint32_t)draw(random, count + 1)
                                                  : (uint32_t)draw(random, 2) * count;
    }
}

void media_images(uint64_t limit, uint64_t seed,
                  bool (*take)(uint64_t choice, const uint32_t *prefix, bool loose, void *arg),
                  void *arg) {
    static uint32_t prefix[DIRTY_MAX];
    uint64_t all = combinations(limit), random = mix64(seed);
    bool exhaustive = all <= limit;
    uint32_t n = world->dirty_count;
    for (uint64_t choice = 0; choice < (exhaustive ? all : limit); choice++) {
        uint64_t rest = choice;
        if (exhaustive)
            for (uint32_t i = 0; i < n; rest /= pending(i) + 1, i++)
                prefix[i] = (uint32_t)(rest % (pending(i) + 1));
        else if (n > limit / 4 && choice >= 2) // too many lines to take each alone: some are drawn
            choose(draw(&random, 2) ? 2 + draw(&random, 2ull * n) : UINT64_MAX, prefix, &random);
        else
            choose(choice, prefix, &random);
        if (!take(choice, prefix, false, arg))
            return;
    }
    // A compiler may reorder plain stores between two barriers. So some images take any subset of
    // them: one at least.
    for (uint64_t i = 0; i < (limit + 15) / 16 && n && all > 2; i++) {
        choose(UINT64_MAX, prefix, &random);
        if (!take(limit + i, prefix, true, arg))
            return;
    }
}

// A group is the stores between two compiler barriers. [*from, *to) becomes the group that store
// number `prefix` of the line belongs to.
static void group_at(const struct line *line, uint32_t prefix, uint32_t *from, uint32_t *to) {
    uint32_t at = 0;
    *from = 0;
    *to = line->count;
    for (uint32_t i = line->first; i; i = world->pool[i].next, at++) {
        if (!world->pool[i].ordered)
            continue;
        if (at <= prefix)
            *from = at;
        else if (*to == line->count)
            *to = at;
    }
}

// Which stores of a line are in an image. Without `loose` the first `prefix` stores. With `loose`
// all groups before the group of store number `prefix`, and any stores of that group.
static unsigned line_values(const struct line *line, uint32_t prefix, bool loose, uint64_t *random,
                            uint64_t value[LINE_WORDS]) {
    uint32_t from, to, at = 0;
    unsigned set = 0;
    group_at(line, prefix, &from, &to);
    for (uint32_t i = line->first; i; i = world->pool[i].next, at++) {
        bool in = loose ? at < from || (at < to && draw(random, 2)) : at < prefix;
        if (!in)
            continue;
        value[world->pool[i].word % LINE_WORDS] = world->pool[i].value;
        set |= 1u << world->pool[i].word % LINE_WORDS;
    }
    return set;
}

uint32_t media_patches(const uint32_t *prefix, bool loose, uint64_t seed, struct patch *out,
                       uint64_t *hash) {
    uint32_t count = 0;
    uint64_t random = seed;
    *hash = world->media_hash;
    for (uint32_t d = 0; d < world->dirty_count; d++) {
        const struct line_ref *ref = &world->dirty[d];
        const struct line *line = &world->shadow[ref->file].line[ref->line];
        uint64_t value[LINE_WORDS];
        unsigned set = line_values(line, prefix[d], loose, &random, value);
        for (unsigned w = 0; w < LINE_WORDS; w++) {
            uint32_t word = ref->line * LINE_WORDS + w;
            uint64_t old = world->shadow[ref->file].media[word];
            if (!(set >> w & 1) || value[w] == old)
                continue;
            if (count == PATCHES)
                full("patches");
            *hash ^= word_hash(ref->file, word, old) ^ word_hash(ref->file, word, value[w]);
            out[count++] = (struct patch){ref->file, word, value[w]};
        }
    }
    return count;
}

void media_become(const struct patch *patch, uint32_t count) {
    while (world->dirty_count) {
        const struct line_ref d = world->dirty[0];
        struct line *line = &world->shadow[d.file].line[d.line];
        retire(d.file, line, line->count, false);
    }
    for (uint32_t i = 0; i < count; i++)
        set_media(patch[i].file, patch[i].word, patch[i].value);
    for (unsigned file = 0; file < SHADOWS; file++)
        memcpy(world->shadow[file].now, world->shadow[file].media, world->shadow[file].size);
    memset(flush_count, 0, sizeof flush_count);
}
