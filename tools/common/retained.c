// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "retained.h"

#include <stdio.h>
#include <string.h>

#include "blocks/population.h"
#include "pages/extent.h"
#include "roots/root_table.h"

enum { NONE = -1 };

// One marking: from all roots but one.
struct marking {
    const struct pm_root_table *table;
    uint32_t part; // of the captured roots, the one that comes next
    int root;      // its number, counted without its later parts
    int skipped;   // the number of the root that is left out, or NONE
    unsigned slot; // the slot that is left out, if `skipped` is a slot
    bool skip_slot;
};

// The captured roots come in the order of the table, and then all slots at once.
static void mark_but_one(const struct pm_root_bytes *root, void *arg) {
    struct marking *m = arg;
    if (m->part < m->table->count) {
        m->root += !m->table->root[m->part++].part;
        if (m->root != m->skipped)
            pm_mark_root(root, NULL);
        return;
    }
    uint64_t slots[PM_ROOT_SLOTS];
    memcpy(slots, root->bytes, sizeof slots);
    if (m->skip_slot)
        slots[m->slot] = 0;
    pm_mark_root(&(struct pm_root_bytes){slots, sizeof slots, 0, root->restored}, NULL);
}

static void count_marked(struct retained_blocks *b) {
    memset(b, 0, sizeof *b);
    for (uint32_t i = 0; (i = pm_extent_next_active(i)) != 0;) {
        struct pm_extent *e = &pm_extents[i];
        if (!e->slab) {
            b->count[0] += e->marked;
            b->bytes[0] += e->marked ? pm_extent_bytes(e) : 0;
            e->marked = 0;
            continue;
        }
        struct pm_population population[2];
        unsigned count = pm_slab_populations(&pm_vslabs[pm_extent_slab(e)], population);
        for (unsigned p = 0; p < count; p++)
            for (unsigned w = 0; w < pm_slab_words(population[p].cls); w++)
                b->count[population[p].cls] +=
                    (unsigned)__builtin_popcountll(population[p].bits[w]);
    }
    for (unsigned cls = 0; cls <= PM_CLASSES; cls++) {
        if (cls)
            b->bytes[cls] = b->count[cls] * pm_classes[cls].size;
        b->all_count += b->count[cls];
        b->all_bytes += b->bytes[cls];
    }
}

static int mark(struct marking *m, struct retained_blocks *marked, struct pm_error *err) {
    struct pm_mark_options options = {0};
    m->part = 0;
    m->root = NONE;
    int status = pm_mark_begin(&options, err);
    if (status == PM_OK)
        status = pm_roots_each(mark_but_one, m, err);
    if (status == PM_OK)
        pm_mark_run();
    if (status == PM_OK || m->part)
        pm_mark_end();
    count_marked(marked);
    return status;
}

void retained_add(struct retained_blocks *to, const struct retained_blocks *b) {
    for (unsigned cls = 0; cls <= PM_CLASSES; cls++) {
        to->count[cls] += b->count[cls];
        to->bytes[cls] += b->bytes[cls];
    }
    to->all_count += b->all_count;
    to->all_bytes += b->all_bytes;
}

static void subtract(struct retained_blocks *from, const struct retained_blocks *b) {
    for (unsigned cls = 0; cls <= PM_CLASSES; cls++) {
        from->count[cls] -= b->count[cls];
        from->bytes[cls] -= b->bytes[cls];
    }
    from->all_count -= b->all_count;
    from->all_bytes -= b->all_bytes;
}

static struct retained_root *next_root(struct retained *r, uint64_t length) {
    struct retained_root *root = &r->root[r->count++];
    root->length = length;
    return root;
}

static void take_name(const struct pm_root *root, const char *text, void *arg) {
    struct retained_root *next = next_root(arg, root->length);
    snprintf(next->text, sizeof next->text, "%s", text);
}

int retained_find(struct retained *r, pm_progress *progress, struct pm_error *err) {
    struct retained_blocks all;
    struct marking m = {.table = pm_roots_table(err), .skipped = NONE};
    unsigned slot[RETAINED_ROOTS];
    memset(r, 0, sizeof *r);
    if (!m.table)
        return err->status;
    pm_roots_list(take_name, r);
    unsigned captured = r->count;
    for (unsigned i = 0; i < PM_ROOT_SLOTS; i++) {
        if (!pm_heap_slot(i))
            continue;
        struct retained_root *next = next_root(r, sizeof(void *));
        slot[next - r->root] = i;
        snprintf(next->text, sizeof next->text, "slot %u", i);
    }
    int status = mark(&m, &all, err);
    r->shared = all;
    for (unsigned i = 0; i < r->count && status == PM_OK; i++) {
        struct retained_blocks others;
        m.skipped = i < captured ? (int)i : NONE;
        m.skip_slot = i >= captured;
        m.slot = m.skip_slot ? slot[i] : 0;
        if (progress)
            progress("roots", i, r->count);
        status = mark(&m, &others, err);
        r->root[i].blocks = all;
        subtract(&r->root[i].blocks, &others);
        subtract(&r->shared, &r->root[i].blocks);
    }
    return status;
}
