// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "out.h"

#include <stdio.h>

#include "mark_index.h"
#include "media/outside.h"
#include "roots/objects_record.h"
#include "roots/root_table.h"
#include "sample.h"
#include "transient.h"
#include "typed_words.h"
#include "way.h"

bool pm_out_begin(struct pm_out *o) {
    uint64_t from = UINT64_MAX, to = 0;
    *o = (struct pm_out){0};
    o->count = pm_outside_read(o->range);
    for (unsigned i = 0; i < o->count; i++) {
        from = o->range[i].from < from ? o->range[i].from : from;
        to = o->range[i].to > to ? o->range[i].to : to;
    }
    pm_record_read();
    if (o->count)
        o->high = pm_high_halves(from, to - from, false);
    return o->count;
}

// At the next start, before anybody looks at it.
static bool becomes_null(uint32_t kind, uint64_t word, uint64_t at, const struct pm_out_holder *h) {
    return !h->in_root && (pm_transient_takes(kind, word) || pm_typed_word_is(h->type, at));
}

static void count_word(struct pm_out *o, uint64_t word, uint64_t at,
                       const struct pm_out_holder *h) {
    for (unsigned i = 0; i < o->count; i++) {
        struct pm_out_row *row = &o->row[i];
        if (word - o->range[i].from >= o->range[i].to - o->range[i].from)
            continue;
        if (becomes_null(o->range[i].kind, word, at, h) || pm_record_lay_at(word))
            return;
        if (!row->words++)
            *row = (struct pm_out_row){1, h->in_root, h->number, at, h->size};
        return;
    }
}

void pm_out_count(struct pm_out *o, const void *bytes, uint64_t len,
                  const struct pm_out_holder *h) {
    const uint64_t *word = bytes, *end = word + len / sizeof *word;
    for (; end - word >= 4; word += 4)
        for (unsigned near = pm_words_near(word, o->high); near; near &= near - 1) {
            const uint64_t *at = word + __builtin_ctz(near);
            count_word(o, *at, h->from + (uint64_t)((const char *)at - (const char *)bytes), h);
        }
    for (; word < end; word++)
        count_word(o, *word, h->from + (uint64_t)((const char *)word - (const char *)bytes), h);
}

// ---- the look of a recovery ---------------------------------------------------------------------

static void look_at_piece(const struct pm_piece *p, void *o) {
    const struct pm_out_holder h = {.number = p->block, .size = p->size, .from = p->from};
    pm_out_count(o, pm_marks.bytes + p->block + p->from, p->to - p->from, &h);
}

struct roots {
    struct pm_out *out;
    uint64_t number;
};

// Memory that is not restored is nobody's in the next run.
static void look_at_root(const struct pm_root_bytes *root, void *arg) {
    struct roots *r = arg;
    uint64_t skip = -(uint64_t)(uintptr_t)root->bytes & 7;
    const struct pm_out_holder h = {.in_root = true, .number = r->number++, .from = skip};
    if (root->restored && root->address && root->len > skip)
        pm_out_count(r->out, (const char *)root->bytes + skip, root->len - skip, &h);
}

const struct pm_out_found *pm_out_look(struct pm_error *err) {
    static struct pm_out_found found;
    static struct pm_out o;
    struct roots roots = {.out = &o};
    if (!pm_out_begin(&o) || pm_roots_each(look_at_root, &roots, err) != PM_OK)
        return NULL;
    bool all = pm_sample_each(PM_OUT_BYTES, look_at_piece, &o);
    return pm_out_find(&o, all, &found) ? &found : NULL;
}

// ---- what was found -----------------------------------------------------------------------------

static void find_way(const struct pm_out_row *row, char *out, size_t len) {
    const struct pm_way root = {.number = (uint32_t)row->holder, .at = row->at};
    if (row->in_root) {
        pm_way_root_text(&root, out, len);
        return;
    }
    pm_way_find_text(row->holder, row->at, out, len);
    if (!*out)
        snprintf(out, len, "+%lu of %lu bytes at %#lx", (unsigned long)row->at,
                 (unsigned long)row->holder_size, (unsigned long)(pm_base + row->holder));
}

bool pm_out_find(const struct pm_out *o, bool all, struct pm_out_found *found) {
    const struct pm_out_row *most = &o->row[0];
    *found = (struct pm_out_found){.all = all};
    for (unsigned i = 0; i < o->count; i++) {
        found->others += o->row[i].words;
        most = o->row[i].words > most->words ? &o->row[i] : most;
    }
    if (!most->words)
        return false;
    found->words = most->words;
    found->others -= most->words;
    found->into = o->range[most - o->row];
    find_way(most, found->way, sizeof found->way);
    return true;
}

void pm_out_range_text(const struct pm_outside_range *r, char *out, size_t len) {
    const char *const text[] = {"",
                                "a stack of the first thread",
                                "thread-local memory",
                                "a stack of another thread",
                                "a mapping of",
                                "anonymous memory"};
    if (r->kind == PM_OUTSIDE_FILE)
        snprintf(out, len, "a mapping of %s", *r->name ? r->name : "a file");
    else
        snprintf(out, len, "%s", text[r->kind]);
}

void pm_out_say(const struct pm_out_found *f, bool next) {
    char into[PM_OUTSIDE_NAME + 32], others[64] = "";
    pm_out_range_text(&f->into, into, sizeof into);
    if (f->others)
        snprintf(others, sizeof others, ", and %lu into others", (unsigned long)f->others);
    pm_event(PM_EV_WORDS_LEAD_OUT,
             "%s: %s%lu word%s point%s into %s that %s: `%s`%s; `pmalloc-info --out %s` lists them",
             pm_heap.dir, f->all ? "" : "at least ", (unsigned long)f->words,
             f->words == 1 ? "" : "s", f->words == 1 ? "s" : "", into,
             next ? "will not be there at the next start" : "is not there", f->way, others,
             pm_heap.dir);
}
