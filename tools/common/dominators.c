// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "dominators.h"

#include <stdlib.h>

// Nodes are named by their numbers in the order of a walk that goes deep first. All arrays but
// `number` are by that.
struct search {
    const struct graph *g;
    uint32_t reached;
    uint32_t *number; // by node; DOMINATORS_NONE: not reached
    uint32_t *node;
    uint32_t *parent;   // in the tree of the walk; later the dominator
    uint32_t *ancestor; // the same, with ways shortened
    uint32_t *semi, *label;
    uint64_t *from; // where the numbers of those that lead to a node begin in `before`
    uint32_t *before;
    uint32_t *stack;
};

// ---- the walk -----------------------------------------------------------------------------------

static void reach(struct search *s, uint32_t node, uint32_t parent) {
    s->number[node] = s->reached;
    s->node[s->reached] = node;
    s->parent[s->reached++] = parent;
}

// `next` is by number: which edge of the node is looked at next.
static void walk(struct search *s, uint64_t *next) {
    const struct graph *g = s->g;
    uint32_t depth = 1;
    for (uint32_t i = 0; i < g->count; i++)
        s->number[i] = DOMINATORS_NONE;
    reach(s, 0, 0);
    s->stack[0] = 0;
    next[0] = g->first[0];
    while (depth > 0) {
        uint32_t at = s->stack[depth - 1], node = s->node[at];
        if (next[at] == g->first[node + 1]) {
            depth--;
            continue;
        }
        uint32_t to = g->edge[next[at]++];
        if (s->number[to] != DOMINATORS_NONE)
            continue;
        next[s->reached] = g->first[to];
        s->stack[depth++] = s->reached;
        reach(s, to, at);
    }
}

// Counted, then summed up, then filled from the ends.
static void turn_edges(struct search *s) {
    const struct graph *g = s->g;
    for (uint32_t i = 0; i <= s->reached; i++)
        s->from[i] = 0;
    for (uint32_t i = 0; i < s->reached; i++)
        for (uint64_t e = g->first[s->node[i]]; e < g->first[s->node[i] + 1]; e++)
            s->from[s->number[g->edge[e]]]++;
    for (uint32_t i = 1; i <= s->reached; i++)
        s->from[i] += s->from[i - 1];
    for (uint32_t i = 0; i < s->reached; i++)
        for (uint64_t e = g->first[s->node[i]]; e < g->first[s->node[i] + 1]; e++)
            s->before[--s->from[s->number[g->edge[e]]]] = i;
}

// ---- semidominators -----------------------------------------------------------------------------

// Of the nodes from v up to the last one that is linked, the one with the smallest semidominator.
// Nodes from `last` on are linked. The way up is shortened for the next time.
static uint32_t best(struct search *s, uint32_t v, uint32_t last) {
    uint32_t depth = 0;
    for (; v >= last && s->ancestor[v] >= last; v = s->ancestor[v])
        s->stack[depth++] = v;
    while (depth > 0) {
        uint32_t below = s->stack[--depth];
        if (s->semi[s->label[v]] < s->semi[s->label[below]])
            s->label[below] = s->label[v];
        s->ancestor[below] = s->ancestor[v];
        v = below;
    }
    return s->label[v];
}

static void find_semi(struct search *s) {
    for (uint32_t i = 0; i < s->reached; i++) {
        s->semi[i] = s->label[i] = i;
        s->ancestor[i] = s->parent[i];
    }
    for (uint32_t i = s->reached - 1; i > 0; i--) {
        uint32_t least = s->parent[i];
        for (uint64_t e = s->from[i]; e < s->from[i + 1]; e++) {
            uint32_t semi = s->semi[best(s, s->before[e], i + 1)];
            least = semi < least ? semi : least;
        }
        s->semi[i] = least;
    }
}

static void find(struct search *s, uint32_t *dominator, uint32_t *order) {
    find_semi(s);
    for (uint32_t i = 1; i < s->reached; i++)
        while (s->parent[i] > s->semi[i])
            s->parent[i] = s->parent[s->parent[i]];
    for (uint32_t i = 0; i < s->g->count; i++)
        dominator[i] = DOMINATORS_NONE;
    for (uint32_t i = 0; i < s->reached; i++) {
        order[i] = s->node[i];
        if (i > 0)
            dominator[s->node[i]] = s->node[s->parent[i]];
    }
}

uint32_t dominators_find(const struct graph *g, uint32_t *dominator, uint32_t *order) {
    enum { ARRAYS = 7 };
    uint64_t edges = g->first[g->count], count = g->count;
    uint32_t *numbers = calloc(count, ARRAYS * sizeof *numbers);
    struct search s = {.g = g, .from = calloc(count + 1, sizeof *s.from)};
    s.before = calloc(edges + 1, sizeof *s.before);
    if (numbers && s.from && s.before) {
        uint32_t **const array[ARRAYS] = {&s.number, &s.node,  &s.parent, &s.ancestor,
                                          &s.semi,   &s.label, &s.stack};
        for (unsigned i = 0; i < ARRAYS; i++)
            *array[i] = numbers + i * count;
        walk(&s, s.from);
        turn_edges(&s);
        find(&s, dominator, order);
    }
    free(numbers);
    free(s.from);
    free(s.before);
    return s.reached;
}
