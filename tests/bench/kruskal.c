// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Minimal spanning trees of complete graphs with six nodes, by Kruskal's algorithm. Each graph is a
// block of 168 bytes that is freed afterwards.
#include "bench.h"

enum { NODES = 6, EDGES = NODES * (NODES - 1) / 2 };

static uint64_t graphs = 2000000;

struct edge {
    uint8_t from, to;
    uint16_t weight;
};

struct graph {
    struct edge edges[EDGES]; // sorted by weight
    uint8_t group[NODES];
    char rest[168 - EDGES * sizeof(struct edge) - NODES];
};
_Static_assert(sizeof(struct graph) == 168, "the size that is measured");

static void make_graph(struct graph *g, uint64_t *random) {
    unsigned count = 0;
    for (uint8_t from = 0; from < NODES; from++) {
        g->group[from] = from;
        for (uint8_t to = 0; to < from; to++) {
            struct edge e = {from, to, (uint16_t)bench_random(random)};
            unsigned i = count++;
            for (; i > 0 && g->edges[i - 1].weight > e.weight; i--)
                g->edges[i] = g->edges[i - 1];
            g->edges[i] = e;
        }
    }
}

static uint64_t spanning_weight(struct graph *g) {
    uint64_t weight = 0;
    for (unsigned i = 0, taken = 0; taken < NODES - 1; i++) {
        uint8_t from = g->group[g->edges[i].from], to = g->group[g->edges[i].to];
        if (from == to)
            continue;
        weight += g->edges[i].weight;
        taken++;
        for (unsigned node = 0; node < NODES; node++)
            if (g->group[node] == from)
                g->group[node] = to;
    }
    return weight;
}

static uint64_t work(unsigned worker) {
    uint64_t random = bench_stream(worker), answer = 0, mine = bench_part(graphs, worker);
    for (uint64_t i = 0; i < mine; i++) {
        struct graph *g = bench_block(sizeof *g);
        make_graph(g, &random);
        answer += spanning_weight(g);
        bench_free(g);
    }
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {{'n', "graphs, all threads together", &graphs},
                                                  {0}};
    bench_begin(argc, argv, NULL, options);
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(2 * graphs, seconds, answer);
}
