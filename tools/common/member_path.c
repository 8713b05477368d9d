// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "member_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "marking/forms.h"
#include "media/heap.h"
#include "member_name.h"
#include "roots/root_media.h"
#include "roots/root_table.h"

enum { PIECE = MEMBER_NAME, FIRST = 3, LAST = 2 };

// The types on the way. Each step takes the type of what the pointer before it leads to.
struct path {
    struct program_types *of;
    uint64_t type;    // of what is at `object`; 0: not known any more
    uint64_t object;  // an address
    uint64_t pointer; // behind a step: the type of the pointer, or 0
    char (*piece)[PIECE];
    uint32_t pieces;
};

static void append(char *out, const char *text) {
    size_t used = strlen(out);
    snprintf(out + used, PIECE - used, "%s", text);
}

// ---- the way ------------------------------------------------------------------------------------

// Whether a word of the object is named; then a piece is added, and `pointer` is its type.
static bool step_by_type(struct path *p, uint64_t at, bool first) {
    struct dwarf *d = p->of ? p->of->types : NULL;
    uint64_t size = p->type ? dw_size(d, p->type) : 0, offset = at - p->object;
    char found[PIECE] = "", index[32] = "";
    if (!size || offset > (1ull << 40))
        return false;
    if (offset >= size && !first) {
        snprintf(index, sizeof index, "[%lu]", (unsigned long)(offset / size));
        offset %= size;
    }
    struct member m;
    if (!member_at(d, p->type, offset, found, &m))
        return false;
    p->pointer = m.type;
    bool arrow = !first && !*index && *found == '.';
    char *piece = p->piece[p->pieces++];
    append(piece, index);
    append(piece, arrow ? "->" : "");
    append(piece, arrow ? found + 1 : found);
    if (!first && !*piece)
        append(piece, "[0]");
    return true;
}

// The word at `at` leads to the next object.
static void follow(struct path *p, uint64_t at) {
    struct dwarf_entry e;
    uint64_t word;
    memcpy(&word, (const void *)(uintptr_t)at, sizeof word);
    p->object = pm_untagged(word);
    bool pointer = p->pointer && dw_strip(p->of->types, p->pointer, &e) &&
                   (e.tag == DW_POINTER || e.tag == DW_REFERENCE);
    p->type = pointer ? e.type : 0;
}

static void step(struct path *p, uint64_t block, uint64_t size, uint64_t place, bool last) {
    uint64_t at = pm_base + block + place;
    *p->piece[p->pieces] = '\0';
    if (!step_by_type(p, at, false)) {
        snprintf(p->piece[p->pieces++], PIECE, " -> +%lu of %lu bytes", (unsigned long)place,
                 (unsigned long)size);
        p->pointer = 0;
    }
    if (!last)
        follow(p, at);
}

// The root itself: its name, and the member in it.
static bool begin(struct path *p, uint32_t number, uint64_t place) {
    struct pm_error ignored;
    uint64_t offset;
    const struct pm_root_table *table = pm_roots_table(&ignored);
    const struct pm_root *r = table && number < table->count ? &table->root[number] : NULL;
    if (!r || !p->of || !program_variable(p->of, r, place, p->piece[0], PIECE, &p->type, &offset))
        return false;
    p->object = r->address + place - offset;
    return step_by_type(p, r->address + place, true);
}

static void begin_untyped(struct path *p, const struct pm_way *way) {
    pm_way_root_text(way, p->piece[0], PIECE);
    p->pieces = 1;
    p->type = p->pointer = 0;
}

// The word of the root that leads on, which lies in its image.
static void leave_root(struct path *p, const struct pm_way *way, uint64_t first_block) {
    static const char *images;
    struct pm_error ignored;
    struct dwarf_entry e;
    const struct pm_root_table *table = pm_roots_table(&ignored);
    if (table && !images)
        images = pm_roots_images(table);
    bool pointer = images && p->pointer && dw_strip(p->of->types, p->pointer, &e) &&
                   e.tag == DW_POINTER && way->start == PM_WAY_ROOT;
    p->type = pointer ? e.type : 0;
    p->object = pm_base + first_block;
    if (!pointer)
        return;
    uint64_t word, at = table->root[way->number].image - table->area_offset + way->at;
    memcpy(&word, images + at, sizeof word);
    p->object = pm_untagged(word);
}

static void join(const struct path *p, char *out, size_t len) {
    size_t used = 0;
    *out = '\0';
    for (uint32_t i = 0; i < p->pieces && used < len; i++) {
        bool left_out = p->pieces > FIRST + LAST + 1 && i >= FIRST && i < p->pieces - LAST;
        if (left_out && i > FIRST)
            continue;
        int more = left_out
                       ? snprintf(out + used, len - used, "->(%u more)", p->pieces - FIRST - LAST)
                       : snprintf(out + used, len - used, "%s", p->piece[i]);
        used += (size_t)more;
    }
}

void member_path(struct program_types *types, uint64_t block, uint64_t place, char *out,
                 size_t len) {
    struct path p = {.of = types};
    struct pm_way way;
    *out = '\0';
    if (!pm_way_of(block, &way))
        return;
    struct pm_way_step *steps = calloc(way.steps, sizeof *steps);
    p.piece = calloc(way.steps + 1ul, sizeof *p.piece);
    if (steps && p.piece) {
        pm_way_steps(block, steps);
        if (way.start != PM_WAY_ROOT || !begin(&p, way.number, way.at))
            begin_untyped(&p, &way);
        leave_root(&p, &way, steps[0].block);
        for (uint32_t i = 0; i < way.steps; i++) {
            bool last = i + 1 == way.steps;
            step(&p, steps[i].block, steps[i].size, last ? place : steps[i].at, last);
        }
        join(&p, out, len);
    }
    free(steps);
    free(p.piece);
}

void member_path_in_root(struct program_types *types, uint32_t root, uint64_t place, char *out,
                         size_t len) {
    char piece[1][PIECE] = {""};
    struct path p = {.of = types, .piece = piece};
    const struct pm_way way = {.number = root, .at = place};
    if (!begin(&p, root, place))
        begin_untyped(&p, &way);
    join(&p, out, len);
}
