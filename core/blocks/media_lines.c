// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "media_lines.h"

#include "base/lazy_table.h"
#include "media/backing/file_space.h"
#include "pages/extent.h"

#define LINES_MAX ((uint32_t)1 << PM_CURRENT_SHIFT)

// The lines of one shard's morph.N. Bit i of `used` is set while line i is in use; line 0 is never
// used. Lock: the shard's extent lock.
struct lines {
    struct pm_lazy_table bits;
    uint64_t *used;
    uint32_t cursor; // where the next search begins
};
static struct lines shard_lines[PM_SHARDS];

static struct lines *lines_in(const struct pm_shard *s) {
    return &shard_lines[s->offset >> PM_SHARD_SHIFT];
}

static bool reserve(struct lines *l) {
    bool good = pm_lazy_table_reserve(&l->bits, LINES_MAX / 8);
    l->used = (uint64_t *)(void *)l->bits.map;
    l->cursor = 1;
    return good;
}

bool pm_media_lines_init(void) { return reserve(&shard_lines[0]); }

// Makes `used` accessible for every line of the file. Called before lines are sought or marked.
static bool cover(const struct pm_shard *s) {
    if (!lines_in(s)->used && !reserve(lines_in(s)))
        return false;
    return pm_lazy_table_need(&lines_in(s)->bits,
                              (s->morph.size / PM_MORPH_LINE + 63) / 64 * sizeof(uint64_t));
}

uint32_t pm_media_lines_there(const struct pm_shard *s) {
    size_t lines = s->morph.size / PM_MORPH_LINE;
    return lines < LINES_MAX ? (uint32_t)lines : LINES_MAX;
}

static bool is_used(const struct lines *l, uint32_t line) {
    return l->used[line / 64] >> line % 64 & 1;
}

static void set_used(struct lines *l, uint32_t line, uint32_t count, bool to) {
    for (uint32_t i = line; i < line + count; i++)
        if (to)
            l->used[i / 64] |= 1ull << i % 64;
        else
            l->used[i / 64] &= ~(1ull << i % 64);
}

static uint32_t find(const struct lines *l, uint32_t from, uint32_t to, uint32_t want) {
    uint32_t run = 0;
    for (uint32_t line = from; line < to; line++) {
        if (line % 64 == 0 && l->used[line / 64] == UINT64_MAX) {
            run = 0;
            line += 63;
            continue;
        }
        run = is_used(l, line) ? 0 : run + 1;
        if (run == want)
            return line + 1 - want;
    }
    return 0;
}

static uint32_t take_lines(struct pm_shard *s, uint32_t want) {
    struct lines *l = lines_in(s);
    if (!cover(s))
        return 0;
    uint32_t line = find(l, l->cursor, pm_media_lines_there(s), want);
    if (!line)
        line = find(l, 1, pm_media_lines_there(s), want);
    if (!line && pm_file_grow(&s->morph, s->morph.size + PM_PAGE_SIZE) && cover(s))
        line = find(l, 1, pm_media_lines_there(s), want);
    if (!line)
        return 0;
    set_used(l, line, want, true);
    l->cursor = line + want;
    return line;
}

bool pm_media_lines_take(struct pm_shard *s, uint32_t count, uint32_t *line) {
    pm_lock(&s->lock);
    *line = take_lines(s, count);
    pm_unlock(&s->lock);
    return *line != 0;
}

void pm_media_lines_give(struct pm_shard *s, uint32_t line, uint32_t count) {
    pm_lock(&s->lock);
    set_used(lines_in(s), line, count, false);
    pm_unlock(&s->lock);
}

bool pm_media_lines_claim(struct pm_shard *s, uint32_t line, uint32_t count) {
    if (!cover(s))
        return false;
    for (uint32_t i = line; i < line + count; i++)
        if (is_used(lines_in(s), i))
            return false;
    set_used(lines_in(s), line, count, true);
    return true;
}
