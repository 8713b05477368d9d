// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "out_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "info_print.h"
#include "marking/words.h"
#include "media/outside.h"
#include "member_path.h"
#include "recovery/out.h"
#include "recovery/used.h"
#include "roots/root_table.h"

#define HOLDERS 4096u // a power of two; half of them are used
#define WAY_BLOCKS (1u << 26)
#define AROUND ((uint64_t)64 << 20) // so near to what is mapped an address may have been mapped

const char *const out_kind_name[OUT_KINDS] = {"stack",     "thread-local", "file",
                                              "anonymous", "unmapped",     "module"};

// ---- places -------------------------------------------------------------------------------------

bool out_add_place(struct out_words *o, uint64_t from, uint64_t to, enum out_kind kind,
                   const char *name) {
    if (o->places == o->room) {
        o->room = o->room ? 2 * o->room : 64;
        struct out_place *more = realloc(o->place, o->room * sizeof *more);
        if (!more)
            return false;
        o->place = more;
    }
    struct out_place *p = &o->place[o->places++];
    *p = (struct out_place){.from = from, .to = to, .kind = kind};
    snprintf(p->name, sizeof p->name, "%s", name);
    if (kind != OUT_UNMAPPED) {
        o->low = !o->low || from < o->low ? from : o->low;
        o->high = to > o->high ? to : o->high;
    }
    return true;
}

bool out_places_on_record(struct out_words *o) {
    static const enum out_kind kinds[] = {
        [PM_OUTSIDE_STACK] = OUT_STACK,         [PM_OUTSIDE_TLS] = OUT_TLS,
        [PM_OUTSIDE_THREADS] = OUT_STACK,       [PM_OUTSIDE_FILE] = OUT_FILE,
        [PM_OUTSIDE_ANONYMOUS] = OUT_ANONYMOUS,
    };
    struct pm_outside_range range[PM_OUTSIDE_RANGES];
    struct pm_program program;
    unsigned count = pm_outside_read(range);
    bool good = true;
    for (unsigned i = 0; i < count; i++) {
        char name[OUT_NAME];
        pm_out_range_text(&range[i], name, sizeof name);
        good &= out_add_place(o, range[i].from, range[i].to, kinds[range[i].kind], name);
    }
    if (info_program(&program) && program.main_end)
        good &= out_add_place(o, program.main_start, program.main_end, OUT_MODULE, program.path) &&
                out_add_place(o, program.libs_start, program.libs_end, OUT_MODULE,
                              "libraries of the program");
    return good && out_add_place(o, 0, 0, OUT_UNMAPPED, "addresses of which nothing is on record");
}

// Where the word leads to; NULL: it is no such address. Unmapped memory is the last place.
static struct out_place *place_of(const struct out_words *o, uint64_t word) {
    for (uint32_t i = 0; i < o->places; i++)
        if (word - o->place[i].from < o->place[i].to - o->place[i].from)
            return &o->place[i];
    bool near = word >= o->low - AROUND && word < o->high && word - pm_base >= pm_range;
    return near ? &o->place[o->places - 1] : NULL;
}

// ---- words --------------------------------------------------------------------------------------

struct look {
    struct out_words *out;
    struct pm_high_halves high;
    bool in_root;
    uint64_t block, size;
};

// The elements of a large block are no members of a type: all are one holder.
static struct out_holder *holder_of(const struct look *l, uint32_t place, uint64_t at) {
    uint64_t where = !l->in_root && l->size > 16384 ? 0 : at, who = l->in_root ? l->block : 0;
    uint64_t key = (l->size << 20 ^ where << 8 ^ who) * 31 + place * 2u + l->in_root;
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 40) % HOLDERS;
    for (;; i = (i + 1) % HOLDERS) {
        struct out_holder *h = &l->out->holder[i];
        bool same = h->used && h->place == place && h->in_root == l->in_root &&
                    h->size == l->size && (!l->in_root || h->block == l->block) &&
                    (where == 0 || h->at == at);
        if (same)
            return h;
        if (h->used)
            continue;
        if (l->out->holders >= HOLDERS / 2)
            return NULL;
        l->out->holders++;
        *h = (struct out_holder){place, true, l->in_root, l->block, l->size, at, 0, ""};
        return h;
    }
}

static void take_word(const struct look *l, uint64_t word, uint64_t at) {
    struct out_place *p = place_of(l->out, word);
    if (!p)
        return;
    p->words++;
    *(p->kind == OUT_MODULE ? &l->out->module_words : &l->out->words) += 1;
    struct out_holder *h = holder_of(l, (uint32_t)(p - l->out->place), at);
    if (h)
        h->words++;
    else
        l->out->too_many = true;
}

static void look_at(const struct look *l, const char *bytes, uint64_t len, uint64_t from) {
    const uint64_t *word = (const void *)bytes, *end = word + len / sizeof *word;
    for (; end - word >= 4; word += 4)
        for (unsigned near = pm_words_near(word, l->high); near; near &= near - 1) {
            const uint64_t *at = word + __builtin_ctz(near);
            take_word(l, *at, from + (uint64_t)((const char *)at - bytes));
        }
    for (; word < end; word++)
        take_word(l, *word, from + (uint64_t)((const char *)word - bytes));
}

// ---- blocks and roots ---------------------------------------------------------------------------

static void look_at_piece(const struct pm_piece *p, void *arg) {
    struct look *l = arg;
    l->block = p->block;
    l->size = p->size;
    look_at(l, pm_heap_at(p->block + p->from), p->to - p->from, p->from);
}

static void look_at_root(const struct pm_root_bytes *root, void *arg) {
    struct look *l = arg;
    uint64_t skip = -(uint64_t)(uintptr_t)root->bytes & 7;
    if (root->restored && root->address && root->len > skip)
        look_at(l, (const char *)root->bytes + skip, root->len - skip, skip);
    l->block++;
}

// ---- the whole ----------------------------------------------------------------------------------

static void find_paths(struct out_words *o, struct program_types *types) {
    static uint64_t target[HOLDERS];
    unsigned count = 0;
    for (uint32_t i = 0; i < HOLDERS; i++)
        if (o->holder[i].used && !o->holder[i].in_root)
            target[count++] = o->holder[i].block;
    if (count && !pm_ways_find(target, count, WAY_BLOCKS))
        count = 0;
    for (uint32_t i = 0; i < HOLDERS; i++) {
        struct out_holder *h = &o->holder[i];
        if (h->used && h->in_root)
            member_path_in_root(types, (uint32_t)h->block, h->at, h->path, sizeof h->path);
        else if (h->used && count)
            member_path(types, h->block, h->at, h->path, sizeof h->path);
    }
    pm_ways_drop();
}

bool out_words_find(struct out_words *o, struct program_types *types) {
    struct pm_error ignored;
    o->holder = calloc(HOLDERS, sizeof *o->holder);
    if (!o->holder)
        return false;
    if (o->high == 0)
        return true;
    uint64_t low = o->low > AROUND ? o->low - AROUND : 0;
    struct look l = {.out = o, .high = pm_high_halves(low, o->high - low, false), .in_root = true};
    pm_roots_each(look_at_root, &l, &ignored);
    l.in_root = false;
    for (unsigned i = 0; i < pm_heap.shards; i++)
        pm_used_each(&pm_heap.shard[i], look_at_piece, &l);
    find_paths(o, types);
    return true;
}
