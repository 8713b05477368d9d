// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Dominators of random graphs against their definition: without the node the other one is not
// reached.
#include "../../tools/common/dominators.c"

#include "check.h"

enum { MOST = 24, EDGES = 80 };

static uint64_t seed = 1;

static uint32_t any(uint32_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static uint64_t first[MOST + 1];
static uint32_t edge[EDGES];
static struct graph g = {.first = first, .edge = edge};

static void make(uint32_t nodes, uint32_t edges) {
    uint64_t at = 0;
    g.count = nodes;
    for (uint32_t i = 0; i < nodes; i++) {
        first[i] = at;
        uint64_t end = (uint64_t)edges * (i + 1) / nodes;
        while (at < end)
            edge[at++] = any(nodes);
    }
    first[nodes] = at;
}

// Which nodes are reached without this one, as bits.
static uint64_t reached_without(uint32_t left_out) {
    uint64_t seen = left_out != 0, before = 0;
    while (seen != before) {
        before = seen;
        for (uint32_t i = 0; i < g.count; i++)
            for (uint64_t e = first[i]; e < first[i + 1] && seen >> i & 1; e++)
                seen |= edge[e] != left_out ? 1ull << edge[e] : 0;
    }
    return seen;
}

static void compare(void) {
    uint32_t dominator[MOST], order[MOST], place[MOST];
    uint64_t all = reached_without(DOMINATORS_NONE), without[MOST];
    uint32_t reached = dominators_find(&g, dominator, order);
    CHECK_EQ(reached, (uint32_t)__builtin_popcountll(all));
    for (uint32_t i = 0; i < reached; i++)
        place[order[i]] = i;
    for (uint32_t i = 0; i < g.count; i++)
        without[i] = reached_without(i);
    CHECK_EQ(dominator[0], DOMINATORS_NONE);
    for (uint32_t i = 1; i < g.count; i++) {
        if (!(all >> i & 1)) {
            CHECK_EQ(dominator[i], DOMINATORS_NONE);
            continue;
        }
        // Of all that dominate it, the last: it is dominated by each of the others.
        uint32_t last = dominator[i];
        CHECK(last < g.count && !(without[last] >> i & 1) && place[last] < place[i]);
        for (uint32_t d = 0; d < g.count && last < g.count; d++)
            if (d != i && d != last && all >> d & 1 && !(without[d] >> i & 1))
                CHECK(!(without[d] >> last & 1));
    }
}

static void test_random_graphs(void) {
    for (unsigned round = 0; round < 20000; round++) {
        make(1 + any(MOST), any(EDGES));
        compare();
    }
}

// As deep as a list of a heap: nothing here is recursive, and the ways are shortened.
static void test_a_long_list(void) {
    enum { LONG = 1000000 };
    uint32_t *to = calloc(2 * LONG, sizeof *to), *dominator = calloc(LONG, sizeof *dominator);
    uint32_t *order = calloc(LONG, sizeof *order);
    uint64_t *begin = calloc(LONG + 1, sizeof *begin);
    for (uint32_t i = 0; i < LONG; i++) { // there and back
        begin[i] = 2ull * i;
        to[2 * i] = i + 1 < LONG ? i + 1 : i;
        to[2 * i + 1] = i ? i - 1 : 0;
    }
    begin[LONG] = 2ull * LONG;
    const struct graph list = {LONG, begin, to};
    CHECK_EQ(dominators_find(&list, dominator, order), LONG);
    for (uint32_t i = 1; i < LONG; i++)
        if (dominator[i] != i - 1 || order[i] != i) {
            CHECK_EQ(dominator[i], i - 1);
            break;
        }
    free(to);
    free(dominator);
    free(order);
    free(begin);
}

int main(void) {
    test_random_graphs();
    test_a_long_list();
    return CHECK_DONE();
}
