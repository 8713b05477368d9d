// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "way.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/os.h"
#include "block_around.h"
#include "blocks/pinned.h"
#include "blocks/population.h"
#include "edges.h"
#include "mark_index.h"
#include "marking/forms.h"
#include "media/backing/backing.h"
#include "pages/extent.h"
#include "roots/root_table.h"
#include "roots/spec.h"

#define NONE UINT32_MAX
#define TEXT_STEPS 4u // more are left out of a text

// A block that was found. Those that are to be looked at come in the order of the array.
struct node {
    uint64_t block, at; // at: where the word is that leads here: in the block before, or in a root
    uint32_t before;    // the number of the block before it, or NONE: a root
    uint32_t root;      // then its number, or one of the two below
};
#define PINNED UINT32_MAX
#define SLOT_FROM (UINT32_MAX - PM_ROOT_SLOTS)

static struct node *nodes;
static uint32_t *places; // 1 + the number of the block, by hash
static uint32_t count, most, room;
static size_t bytes_reserved;

// ---- the blocks ---------------------------------------------------------------------------------

static uint32_t *place_of(uint64_t block) {
    uint32_t at = (uint32_t)(block * 0x9e3779b97f4a7c15u >> 32) & (room - 1);
    while (places[at] && nodes[places[at] - 1].block != block)
        at = (at + 1) & (room - 1);
    return &places[at];
}

static const struct node *node_of(uint64_t block) {
    uint32_t number = nodes ? *place_of(block) : 0;
    return number ? &nodes[number - 1] : NULL;
}

static void add(const struct node *n) {
    uint32_t *place = place_of(n->block);
    if (*place || count == most)
        return;
    nodes[count++] = *n;
    *place = count;
}

// ---- words --------------------------------------------------------------------------------------

// What the blocks that are found now are reached from.
struct holder {
    uint32_t number, root;
};

static void reach(const struct pm_block *to, uint64_t at, void *holder) {
    const struct holder *h = holder;
    add(&(struct node){to->start, at, h->number, h->root});
}

// ---- blocks and roots ---------------------------------------------------------------------------

struct roots {
    const struct pm_root_table *table;
    uint32_t part;
};

// The captured roots come in the order of the table, and then all slots at once.
static void look_at_root(const struct pm_root_bytes *root, void *arg) {
    struct roots *r = arg;
    bool slots = r->part >= r->table->count;
    struct holder h = {.number = NONE, .root = r->part++};
    uint64_t address = root->address ? root->address : (uintptr_t)root->bytes;
    const void *own = (const void *)(uintptr_t)address; // under commits the image may be older
    if (!slots)
        pm_edges_of_bytes(pm_roots_captured(own) ? own : root->bytes, root->len, address, 0, reach,
                          &h);
    for (uint32_t i = 0; slots && i < root->len / sizeof(uint64_t); i++) {
        h.root = SLOT_FROM + i;
        pm_edges_of_word(pm_word_at((const char *)root->bytes + 8 * (uint64_t)i), reach, &h);
    }
}

static void add_pinned_slab(uint32_t slab) {
    struct pm_population population[2];
    unsigned n = pm_slab_populations(&pm_vslabs[slab], population);
    for (unsigned p = 0; p < n; p++)
        for (unsigned i = 0; i < pm_classes[population[p].cls].blocks; i++)
            add(&(struct node){((uint64_t)slab << PM_SLAB_SHIFT) +
                                   (uint64_t)i * pm_classes[population[p].cls].size,
                               0, NONE, PINNED});
}

static void add_pinned(void) {
    if (!(pm_heap.super->super.incompat & PM_INCOMPAT_PINNED))
        return;
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        const struct pm_extent *e = &pm_extents[i];
        if (e->slab && pm_kind_is_pinned(pm_vslabs[pm_extent_slab(e)].kind))
            add_pinned_slab(pm_extent_slab(e));
        else if (!e->slab && pm_kind_is_pinned(e->kind) && pm_pinned_large_is_used(e))
            add(&(struct node){e->page << PM_PAGE_SHIFT, 0, NONE, PINNED});
    }
}

// ---- the search ---------------------------------------------------------------------------------

static bool all_found(const uint64_t *target, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        if (!node_of(target[i]))
            return false;
    return true;
}

bool pm_ways_find(const uint64_t *target, unsigned targets, uint32_t most_blocks) {
    struct pm_error ignored;
    struct roots roots = {.table = pm_roots_table(&ignored)};
    pm_ways_drop();
    for (room = 64; room < 2 * (uint64_t)most_blocks && room < 1u << 31;)
        room *= 2;
    most = most_blocks < room / 2 ? most_blocks : room / 2;
    bytes_reserved = most * sizeof *nodes + room * sizeof *places;
    nodes = pm_os_reserve(bytes_reserved);
    if (!nodes)
        return false;
    places = (uint32_t *)(void *)(nodes + most);
    if (!roots.table || pm_roots_each(look_at_root, &roots, &ignored) != PM_OK) {
        pm_ways_drop();
        return false;
    }
    add_pinned();
    struct pm_written known = {0};
    for (uint32_t i = 0; i < count && !(i % 1024 == 0 && all_found(target, targets)); i++)
        pm_edges_of_block(nodes[i].block, &known, reach, &(struct holder){i, 0});
    return true;
}

void pm_ways_drop(void) {
    if (nodes)
        munmap(nodes, bytes_reserved);
    nodes = NULL;
    count = 0;
}

bool pm_way_of(uint64_t block, struct pm_way *way) {
    const struct node *n = node_of(block);
    *way = (struct pm_way){.steps = 1};
    if (!n)
        return false;
    for (; n->before != NONE; n = &nodes[n->before])
        way->steps++;
    way->at = n->at;
    way->start = n->root == PINNED      ? PM_WAY_PINNED
                 : n->root >= SLOT_FROM ? PM_WAY_SLOT
                                        : PM_WAY_ROOT;
    way->number = way->start == PM_WAY_SLOT ? n->root - SLOT_FROM : n->root;
    return true;
}

void pm_way_steps(uint64_t block, struct pm_way_step *step) {
    struct pm_way way;
    const struct node *n = node_of(block);
    uint64_t at = 0;
    pm_way_of(block, &way);
    for (uint32_t i = way.steps; n && i-- > 0; at = n->at, n = &nodes[n->before]) {
        struct pm_block b = {0};
        pm_block_around(n->block, false, &b);
        step[i] = (struct pm_way_step){n->block, b.size, at};
        if (n->before == NONE)
            return;
    }
}

// ---- text ---------------------------------------------------------------------------------------

void pm_way_root_text(const struct pm_way *way, char *out, size_t len) {
    struct pm_error ignored;
    const struct pm_root_table *table = pm_roots_table(&ignored);
    char name[PM_SPEC_TEXT_LEN];
    if (way->start == PM_WAY_ROOT && table && way->number < table->count)
        pm_root_text(&table->root[way->number], name, sizeof name);
    else if (way->start == PM_WAY_SLOT)
        snprintf(name, sizeof name, "slot %u", way->number);
    else
        snprintf(name, sizeof name, "a pinned block");
    if (way->at)
        snprintf(out, len, "%s+%lu", name, (unsigned long)way->at);
    else
        snprintf(out, len, "%s", name);
}

__attribute__((format(printf, 3, 4))) static void append(char *out, size_t len, const char *format,
                                                         ...) {
    size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, len - used, format, args);
    va_end(args);
}

static void append_step(char *out, size_t len, uint64_t block, uint64_t at) {
    struct pm_block b = {0};
    pm_block_around(block, false, &b);
    append(out, len, " -> +%lu of %lu bytes", (unsigned long)at, (unsigned long)b.size);
}

// The first blocks of the way and its last one.
void pm_way_text(uint64_t block, uint64_t place, char *out, size_t len) {
    struct pm_way way;
    uint64_t first[TEXT_STEPS], at[TEXT_STEPS];
    *out = '\0';
    if (!pm_way_of(block, &way))
        return;
    uint32_t shown = way.steps <= TEXT_STEPS ? way.steps - 1 : TEXT_STEPS - 2, i = way.steps - 1;
    uint64_t leads = 0;
    for (const struct node *n = node_of(block);; n = &nodes[n->before], i--) {
        if (i < shown) {
            first[i] = n->block;
            at[i] = leads;
        }
        leads = n->at;
        if (n->before == NONE)
            break;
    }
    pm_way_root_text(&way, out, len);
    for (i = 0; i < shown; i++)
        append_step(out, len, first[i], at[i]);
    if (way.steps - 1 > shown)
        append(out, len, " -> %u blocks more", way.steps - 1 - shown);
    append_step(out, len, block, place);
}

void pm_way_find_text(uint64_t block, uint64_t place, char *out, size_t len) {
    const uint32_t most_blocks = 1u << 20;
    *out = '\0';
    if (pm_ways_find(&block, 1, most_blocks))
        pm_way_text(block, place, out, len);
    pm_ways_drop();
}
