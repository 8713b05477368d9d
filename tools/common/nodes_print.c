// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "nodes_print.h"

#include <stdio.h>

#include "base/nodes.h"
#include "figures.h"
#include "json.h"
#include "machine_nodes.h"
#include "media/backing/backing.h"
#include "media/open/shard_make.h"

static void look_at_pages(const struct pm_shard *s, struct node_shard *out) {
    struct pm_written known = {0};
    uint64_t at = s->offset, end = s->offset + s->frontier, bytes;
    for (; (bytes = pm_heap_next_data(&known, &at, end)) != 0; at += bytes)
        for (uint64_t page = at & ~(PM_PAGE_SIZE - 1); page < at + bytes; page += PM_PAGE_SIZE) {
            int node = machine_page_node(pm_heap_at(page));
            out->pages++;
            out->unknown += node < 0;
            out->misplaced += node >= 0 && pm_nodes.count > 1 && !pm_nodes.injected &&
                              !pm_node_has(s->node, (unsigned)node);
        }
}

void nodes_take(struct node_shards *out) {
    *out = (struct node_shards){
        .count = pm_heap.shards, .nodes = pm_nodes.count, .machine = pm_nodes.machine};
    for (unsigned i = 0; i < out->count; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        out->shard[i] = (struct node_shard){.file = s->data.name,
                                            .node = s->node,
                                            .recorded = pm_shard_recorded_node(i),
                                            .length = s->frontier};
        look_at_pages(s, &out->shard[i]);
    }
}

typedef unsigned long ulong_t; // what %lu takes

// One line a node, with the distances to all.
static void print_machine(void) {
    struct machine_node node;
    char all[32], free[32];
    if (machine_nodes_end())
        printf("%6s %9s %6s %12s %12s  %s\n", "node", "recorded", "cores", "memory", "free",
               "distances");
    for (unsigned id = 0; id < machine_nodes_end(); id++) {
        if (!machine_node_look(id, &node))
            continue;
        printf("%6u %9u %6u %12s %12s ", id, machine_node_group(id), node.cores,
               figure_bytes(node.bytes, all), figure_bytes(node.free, free));
        for (unsigned other = 0; other < machine_nodes_end(); other++)
            if (machine_nodes_distance(id, other))
                printf(" %u", machine_nodes_distance(id, other));
        putchar('\n');
    }
}

void nodes_text(const struct node_shards *n, const char *heap) {
    printf("heap    %s\n", heap);
    printf("nodes   this machine has %u", n->machine);
    if (n->machine > n->nodes)
        printf(", in %u groups that share a data file", n->nodes);
    putchar('\n');
    print_machine();
    putchar('\n');
    printf("%6s %9s %-8s %16s %16s %16s\n", "node", "recorded", "file", "length", "written",
           "on other nodes");
    for (unsigned i = 0; i < n->count; i++) {
        const struct node_shard *s = &n->shard[i];
        char recorded[12] = "-";
        if (s->recorded >= 0)
            snprintf(recorded, sizeof recorded, "%d", s->recorded);
        printf("%6u %9s %-8s %16lu %16lu %16lu\n", s->node, recorded, s->file, (ulong_t)s->length,
               (ulong_t)(s->pages << PM_PAGE_SHIFT), (ulong_t)(s->misplaced << PM_PAGE_SHIFT));
        if (s->unknown)
            printf("%16s the kernel does not tell where %lu pages lie\n", "", (ulong_t)s->unknown);
    }
}

static void put_machine(struct json *j) {
    struct machine_node node;
    json_open(j, "machine", '[');
    for (unsigned id = 0; id < machine_nodes_end(); id++) {
        if (!machine_node_look(id, &node))
            continue;
        json_open(j, NULL, '{');
        json_number(j, "id", id);
        json_number(j, "node", machine_node_group(id));
        json_number(j, "cores", node.cores);
        json_number(j, "memory_bytes", node.bytes);
        json_number(j, "free_bytes", node.free);
        json_open(j, "distances", '[');
        for (unsigned other = 0; other < machine_nodes_end(); other++)
            if (machine_nodes_distance(id, other))
                json_number(j, NULL, machine_nodes_distance(id, other));
        json_close(j, ']');
        json_close(j, '}');
    }
    json_close(j, ']');
}

void nodes_json(const struct node_shards *n, const char *heap) {
    struct json j = {.out = stdout};
    json_open(&j, NULL, '{');
    json_text(&j, "heap", heap);
    json_number(&j, "nodes", n->nodes);
    json_number(&j, "machine_nodes", n->machine);
    put_machine(&j);
    json_open(&j, "shards", '[');
    for (unsigned i = 0; i < n->count; i++) {
        const struct node_shard *s = &n->shard[i];
        json_open(&j, NULL, '{');
        json_text(&j, "file", s->file);
        json_number(&j, "node", s->node);
        if (s->recorded >= 0)
            json_number(&j, "recorded_node", (uint64_t)s->recorded);
        json_number(&j, "length", s->length);
        json_number(&j, "written_bytes", s->pages << PM_PAGE_SHIFT);
        json_number(&j, "misplaced_bytes", s->misplaced << PM_PAGE_SHIFT);
        json_number(&j, "unknown_pages", s->unknown);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
    json_end(&j);
}
