// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "holders.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "blocks/holes.h"
#include "dominators.h"
#include "media/heap.h"
#include "numbers.h"
#include "pages/extent_adopt.h"
#include "recovery/edges.h"

// Nodes of the graph: 0 leads to all words; then the words, by place; then the blocks, in the order
// in which they are found, which is that of their distance from the words.
struct node {
    uint64_t block, size; // of a word: 0
    uint32_t owner;       // the word that is nearest
};

// Where a word leads to. A word in several forms may lead to several blocks.
struct target {
    uint32_t word;
    struct pm_block block;
};

struct holders {
    struct holders_word *word;
    uint32_t words;
    uint64_t word_room;
    struct target *target; // by word
    uint64_t targets, target_room;
    struct node *node;
    uint64_t *first; // edge of each node
    uint32_t nodes;
    uint64_t node_room, first_room;
    uint32_t *edge;
    uint64_t edges, edge_room;
    struct numbers by_block; // 1 + its start -> its node
    uint32_t owner;          // of what is found now
    bool full;               // no memory
};

static bool grow(void *array, size_t each, uint64_t *room, uint64_t need) {
    void **at = array;
    if (need <= *room)
        return true;
    uint64_t more = need > 2 * *room ? need : 2 * *room;
    void *bigger = realloc(*at, more * each);
    if (!bigger)
        return false;
    *at = bigger;
    *room = more;
    return true;
}

// ---- the words ----------------------------------------------------------------------------------

struct holders *holders_begin(struct pm_error *err) {
    const struct pm_mark_options how = {0};
    struct holders *h = calloc(1, sizeof *h);
    if (!h) {
        pm_fail(err, PM_OPERATIONAL, "no memory");
        return NULL;
    }
    int status = pm_extent_fill_gaps(false, err);
    if (status == PM_OK) {
        pm_holes_find(false);
        status = pm_mark_begin(&how, err);
    }
    return status == PM_OK ? h : NULL;
}

struct adding {
    struct holders *h;
    uint64_t address; // of the bytes
    uint32_t source;
};

static void add_word(const struct pm_block *to, uint64_t at, void *arg) {
    const struct adding *a = arg;
    struct holders *h = a->h;
    uint64_t address = (a->address + at) & ~7ull;
    bool same = h->words && h->word[h->words - 1].address == address;
    if (h->full || !grow(&h->word, sizeof *h->word, &h->word_room, h->words + 1ull) ||
        !grow(&h->target, sizeof *h->target, &h->target_room, h->targets + 1)) {
        h->full = true;
        return;
    }
    if (!same) {
        h->word[h->words++] = (struct holders_word){
            .address = address, .length = 8, .words = 1, .source = a->source, .node = h->words};
    }
    h->target[h->targets++] = (struct target){h->words, *to};
}

bool holders_add(struct holders *h, const void *bytes, uint64_t len, uint64_t address,
                 uint32_t source) {
    uint64_t skip = -address & 7;
    if (len < skip + 8)
        return true;
    struct adding a = {h, address + skip, source};
    pm_edges_of_bytes((const char *)bytes + skip, (len - skip) & ~7ull, a.address, 0, add_word, &a);
    return !h->full;
}

// ---- the graph ----------------------------------------------------------------------------------

// The node's edges follow.
static bool begin_node(struct holders *h, uint32_t node) {
    h->first[node] = h->edges;
    return !h->full;
}

static uint32_t add_node(struct holders *h, uint64_t block, uint64_t size, uint32_t owner) {
    if (h->nodes >= UINT32_MAX / 4 ||
        !grow(&h->node, sizeof *h->node, &h->node_room, h->nodes + 2ull) ||
        !grow(&h->first, sizeof *h->first, &h->first_room, h->nodes + 2ull)) {
        h->full = true;
        return 0;
    }
    h->node[h->nodes] = (struct node){block, size, owner};
    return h->nodes++;
}

static void add_edge(struct holders *h, uint32_t to) {
    if (grow(&h->edge, sizeof *h->edge, &h->edge_room, h->edges + 1))
        h->edge[h->edges++] = to;
    else
        h->full = true;
}

static void take_edge(const struct pm_block *to, uint64_t at, void *arg) {
    struct holders *h = arg;
    (void)at;
    uint32_t *node = h->full ? NULL : numbers_put(&h->by_block, to->start + 1);
    if (!node) {
        h->full = true;
        return;
    }
    if (!*node)
        *node = add_node(h, to->start, to->size, h->owner);
    if (!h->full)
        add_edge(h, *node);
}

bool holders_read(struct holders *h, pm_progress *progress) {
    const uint64_t total = atomic_load_explicit(&pm_heap.length, memory_order_relaxed);
    uint64_t bytes = 0, next = 0;
    struct pm_written known = {0};
    add_node(h, 0, 0, 0);
    for (uint32_t i = 1; i <= h->words && !h->full; i++)
        add_node(h, 0, 0, i);
    if (!h->full)
        begin_node(h, 0);
    for (uint32_t i = 1; i <= h->words && !h->full; i++)
        add_edge(h, i);
    for (uint32_t i = 1; i < h->nodes && begin_node(h, i); i++) {
        h->owner = h->node[i].owner;
        for (; next < h->targets && h->target[next].word == i; next++)
            take_edge(&h->target[next].block, 0, h);
        if (i > h->words)
            pm_edges_of_block(h->node[i].block, &known, take_edge, h);
        bytes += h->node[i].size;
        if (progress && i % 65536 == 0)
            progress("read", bytes, total);
    }
    if (!h->full)
        h->first[h->nodes] = h->edges;
    pm_mark_end();
    return !h->full;
}

// ---- what hangs from them -----------------------------------------------------------------------

static void add_to(struct holders_sum *sum, const struct node *n) {
    sum->blocks += n->size != 0;
    sum->bytes += n->size;
}

// In the order of the walk each node comes after its dominator. So from the end on each hands what
// it has to that.
static bool find_alone(struct holders *h) {
    const struct graph g = {h->nodes, h->first, h->edge};
    uint32_t *dominator = malloc(h->nodes * sizeof *dominator);
    uint32_t *order = malloc(h->nodes * sizeof *order), reached = 0;
    struct holders_sum *sum = calloc(h->nodes, sizeof *sum);
    if (dominator && order && sum)
        reached = dominators_find(&g, dominator, order);
    for (uint32_t i = reached; i-- > 1;) {
        uint32_t node = order[i], above = dominator[node];
        add_to(&sum[node], &h->node[node]);
        sum[above].blocks += sum[node].blocks;
        sum[above].bytes += sum[node].bytes;
    }
    for (uint32_t i = 0; i < h->words && reached; i++)
        h->word[i].alone = sum[i + 1];
    free(dominator);
    free(order);
    free(sum);
    return reached != 0;
}

// What is reached from `words` nodes, or, with `without`, from all words but these. `seen` is all
// zero before and after, and `queue` has room for all nodes.
static struct holders_sum reach_from(const struct holders *h, uint32_t node, uint32_t words,
                                     bool without, uint8_t *seen, uint32_t *queue) {
    struct holders_sum sum = {0};
    uint32_t count = 0;
    for (uint32_t i = 1; i <= h->words; i++)
        if ((i - node < words) != without)
            queue[count++] = i;
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t e = h->first[queue[i]]; e < h->first[queue[i] + 1]; e++) {
            uint32_t to = h->edge[e];
            if (seen[to])
                continue;
            seen[to] = 1;
            add_to(&sum, &h->node[to]);
            queue[count++] = to;
        }
    while (count-- > 0)
        seen[queue[count]] = 0;
    return sum;
}

enum { TOGETHER = 64, GAP = 512, SMALL_PART = 64 };

// Words that follow each other closely, none of which has much of all. Returns how many.
static uint32_t run_length(const struct holders *h, uint32_t from, uint64_t small) {
    uint32_t i = from;
    while (i < h->words && h->word[i].nearest.bytes <= small &&
           (i == from || (h->word[i].source == h->word[from].source &&
                          h->word[i].address - h->word[i - 1].address <= GAP)))
        i++;
    return i - from >= TOGETHER ? i - from : 1;
}

static uint32_t join_runs(struct holders *h, uint64_t small) {
    uint32_t rows = 0;
    for (uint32_t i = 0, count; i < h->words; i += count) {
        count = run_length(h, i, small);
        struct holders_word row = h->word[i];
        row.words = count;
        row.equal = count == 1 ? row.equal : 0;
        row.length = h->word[i + count - 1].address + 8 - row.address;
        for (uint32_t k = i + 1; k < i + count; k++) {
            row.nearest.blocks += h->word[k].nearest.blocks;
            row.nearest.bytes += h->word[k].nearest.bytes;
        }
        h->word[rows++] = row;
    }
    return rows;
}

// A word that has found no block itself leads to one that another word has found.
static void find_equals(struct holders *h) {
    for (uint64_t t = 0; t < h->targets; t++) {
        struct holders_word *w = &h->word[h->target[t].word - 1];
        uint32_t owner = h->node[numbers_get(&h->by_block, h->target[t].block.start + 1)].owner;
        if (!w->nearest.blocks && owner != w->node)
            w->equal = owner;
    }
}

// Those for which others stand come last.
static int by_nearest(const void *a, const void *b) {
    const struct holders_word *x = a, *y = b;
    if (!x->equal != !y->equal)
        return x->equal ? 1 : -1;
    if (x->nearest.bytes != y->nearest.bytes)
        return x->nearest.bytes < y->nearest.bytes ? 1 : -1;
    return x->node < y->node ? -1 : x->node > y->node;
}

static void measure(const struct holders *h, struct holders_found *f, uint8_t *seen,
                    uint32_t *queue) {
    for (uint32_t i = 0; i < f->shown; i++) {
        struct holders_word *w = &f->word[i];
        w->reaches = reach_from(h, w->node, w->words, false, seen, queue);
        if (w->words == 1)
            continue;
        struct holders_sum others = reach_from(h, w->node, w->words, true, seen, queue);
        w->alone = (struct holders_sum){f->sum.blocks - others.blocks, f->sum.bytes - others.bytes};
    }
}

bool holders_find(struct holders *h, uint32_t most, struct holders_found *found) {
    uint8_t *seen = calloc(h->nodes, sizeof *seen);
    uint32_t *queue = malloc(h->nodes * sizeof *queue);
    bool good = seen && queue && find_alone(h);
    *found = (struct holders_found){.word = h->word, .words = h->words};
    for (uint32_t i = h->words + 1; i < h->nodes && good; i++) {
        add_to(&h->word[h->node[i].owner - 1].nearest, &h->node[i]);
        add_to(&found->sum, &h->node[i]);
    }
    if (good)
        find_equals(h);
    found->all = good ? join_runs(h, found->sum.bytes / SMALL_PART) : 0;
    if (found->all)
        qsort(h->word, found->all, sizeof *h->word, by_nearest);
    while (found->rows < found->all && !h->word[found->rows].equal)
        found->rows++;
    found->shown = found->rows < most ? found->rows : most;
    measure(h, found, seen, queue);
    free(seen);
    free(queue);
    return good;
}
