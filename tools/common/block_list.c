// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "block_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "blocks/bitmaps.h"
#include "figures.h"
#include "json.h"
#include "pages/extent.h"

// ---- what is allocated --------------------------------------------------------------------------

// Of an extent. A population without words has what is alive.
struct known {
    uint64_t *words[2];
    bool free;
};

static struct known *known[PM_SHARDS];

static struct known *known_of(uint32_t extent) {
    return &known[extent >> PM_INDEX_SHIFT][extent & ((1u << PM_INDEX_SHIFT) - 1)];
}

bool block_list_begin(void) {
    for (unsigned i = 0; i < pm_heap.shards; i++)
        if (!(known[i] = calloc((size_t)pm_heap.shard[i].extents->top + 1, sizeof *known[i])))
            return false;
    return true;
}

bool block_list_note(uint32_t extent, bool old, const uint64_t *allocated, unsigned words) {
    uint64_t *copy = malloc(words * sizeof *copy);
    if (copy)
        known_of(extent)->words[old] = memcpy(copy, allocated, words * sizeof *copy);
    return copy;
}

void block_list_note_free(uint32_t extent) { known_of(extent)->free = true; }

static void note_record(const struct pm_population *p, const uint64_t *allocated, void *good) {
    if (!block_list_note(pm_vslabs[p->slab].extent, p->old, allocated, pm_slab_words(p->cls)))
        *(bool *)good = false;
}

bool block_list_at_rest(bool clean, bool *exact) {
    bool good = block_list_begin();
    *exact = good && clean && pm_bitmaps_read(note_record, &good);
    return good;
}

int block_list_class(const char *text, unsigned *next) {
    char *end;
    *next = 0;
    if (strcmp(text, "large") == 0)
        return BLOCKS_LARGE;
    unsigned long size = strtoul(text, &end, 10);
    if (*end || *text < '0' || *text > '9')
        return -2;
    for (unsigned cls = 1; cls <= PM_CLASSES; cls++) {
        if (pm_classes[cls].size == size)
            return (int)cls;
        if (pm_classes[cls].size > size && !*next)
            *next = pm_classes[cls].size;
    }
    return -2;
}

// ---- printing -----------------------------------------------------------------------------------

struct row {
    uint64_t offset, size;
    unsigned kind;
    uint16_t type;
    bool large, alive;
};

struct printing {
    const struct block_list *b;
    struct json j;
    uint64_t blocks, bytes;
};

static void print_json(struct json *j, const struct row *r) {
    json_open(j, NULL, '{');
    json_number(j, "address", (uintptr_t)pm_heap_at(r->offset));
    json_number(j, "bytes", r->size);
    json_bool(j, "large", r->large);
    json_number(j, "type", r->type);
    json_bool(j, "pointer_free", !pm_kind_has_pointers(r->kind));
    json_bool(j, "pinned", pm_kind_is_pinned(r->kind));
    json_bool(j, "reached", r->alive);
    json_close(j, '}');
}

static void print_row(struct printing *p, const struct row *r) {
    const struct block_list *b = p->b;
    if ((b->unreached && r->alive) || (b->type != BLOCKS_OF_ANY && b->type != r->type))
        return;
    p->blocks++;
    p->bytes += r->size;
    if (b->json) {
        print_json(&p->j, r);
        return;
    }
    printf("0x%012lx %12lu", (unsigned long)(uintptr_t)pm_heap_at(r->offset),
           (unsigned long)r->size);
    if (r->type)
        printf("  type %u", r->type);
    printf("%s%s%s\n", pm_kind_has_pointers(r->kind) ? "" : "  pointer-free",
           pm_kind_is_pinned(r->kind) ? "  pinned" : "", r->alive ? "" : "  unreached");
}

static void print_slab(struct printing *p, uint32_t extent, uint32_t slab) {
    struct pm_population population[2];
    uint64_t alive[PM_BITMAP_WORDS], both[PM_BITMAP_WORDS];
    const struct pm_vslab *v = &pm_vslabs[slab];
    unsigned count = pm_slab_populations(v, population);
    for (unsigned i = 0; i < count; i++) {
        unsigned cls = population[i].cls, words = pm_slab_words(cls);
        const uint64_t *allocated = known_of(extent)->words[population[i].old];
        if (p->b->cls != BLOCKS_OF_ANY && p->b->cls != (int)cls)
            continue;
        pm_population_used(v, &population[i], alive);
        for (unsigned w = 0; w < words; w++)
            both[w] = alive[w] | (allocated ? allocated[w] : 0);
        PM_EACH_BIT(k, both, words) {
            struct row r = {.size = pm_classes[cls].size, .kind = v->kind, .type = v->type};
            r.offset = ((uint64_t)slab << PM_SLAB_SHIFT) + k * r.size;
            r.alive = pm_bit(alive, k);
            print_row(p, &r);
        }
    }
}

static void print_large(struct printing *p, uint32_t extent) {
    const struct pm_extent *e = &pm_extents[extent];
    struct row r = {.size = pm_extent_bytes(e), .kind = e->kind, .large = true};
    r.offset = e->page << PM_PAGE_SHIFT;
    r.type = pm_kind_is_typed(e->kind) ? e->type : 0;
    r.alive = *pm_tag_at(pm_heap_at(r.offset)) == pm_extent_tag(e); // so the sweep
    if ((p->b->cls == BLOCKS_OF_ANY || p->b->cls == BLOCKS_LARGE) && !known_of(extent)->free)
        print_row(p, &r);
}

static void print_blocks(struct printing *p) {
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;)
        if (pm_extents[i].slab)
            print_slab(p, i, pm_extent_slab(&pm_extents[i]));
        else
            print_large(p, i);
}

static void print_ends(const struct printing *p) {
    char bytes[32];
    printf("%lu blocks, %s\n", (unsigned long)p->blocks, figure_bytes(p->bytes, bytes));
    if (p->b->pid)
        printf("process %d was stopped for %.1f ms\n", (int)p->b->pid, (double)p->b->held_ns / 1e6);
    if (p->b->commits)
        puts("these are the blocks that the roots of its last commit reach, and large ones");
    else if (!p->b->exact)
        puts("small blocks that no root reaches are missing: after a crash they are not on record");
}

void block_list_print(const struct block_list *b, const char *heap) {
    struct printing p = {.b = b, .j = {.out = stdout}};
    if (!b->json) {
        print_blocks(&p);
        print_ends(&p);
        return;
    }
    json_open(&p.j, NULL, '{');
    json_text(&p.j, "heap", heap);
    if (b->pid) {
        json_number(&p.j, "process", (uint64_t)b->pid);
        json_number(&p.j, "held_ns", b->held_ns);
        json_bool(&p.j, "last_commit", b->commits);
    }
    json_bool(&p.j, "exact", b->exact);
    json_open(&p.j, "list", '[');
    print_blocks(&p);
    json_close(&p.j, ']');
    json_number(&p.j, "blocks", p.blocks);
    json_number(&p.j, "bytes", p.bytes);
    json_close(&p.j, '}');
    json_end(&p.j);
}
