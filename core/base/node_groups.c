// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "node_groups.h"

#include <stdbool.h>
#include <string.h>

static unsigned distance(struct pm_node_distances d, unsigned from, unsigned to) {
    return d.row ? d.row[(size_t)from * d.count + to] : 0;
}

// ---- groups -------------------------------------------------------------------------------------

// Nodes that are joined by steps of a distance or less: each points to one of a lower number, the
// first of them to itself.
struct joined {
    uint16_t to[PM_KERNEL_NODES];
    unsigned parts;
};

static unsigned first_of(const struct joined *j, unsigned node) {
    while (j->to[node] != node)
        node = j->to[node];
    return node;
}

static void join(struct joined *j, unsigned a, unsigned b) {
    unsigned x = first_of(j, a), y = first_of(j, b);
    if (x == y)
        return;
    j->to[x < y ? y : x] = (uint16_t)(x < y ? x : y);
    j->parts--;
}

static void join_all(struct joined *j, struct pm_node_distances d, unsigned apart) {
    for (unsigned a = 0; a < d.count; a++)
        for (unsigned b = 0; b < d.count; b++)
            if (a != b && distance(d, a, b) == apart)
                join(j, a, b);
}

// Joins by rising distance as long as at least `most` parts are left.
static void join_nearest(struct joined *j, struct pm_node_distances d, unsigned most) {
    bool seen[256] = {false};
    for (size_t i = 0; d.row && i < (size_t)d.count * d.count; i++)
        seen[d.row[i]] = true;
    for (unsigned apart = 0; apart < 256 && j->parts > most; apart++) {
        if (!seen[apart])
            continue;
        struct joined before = *j;
        join_all(j, d, apart);
        if (j->parts < most) {
            *j = before;
            return;
        }
    }
}

unsigned pm_node_groups(struct pm_node_distances d, unsigned most, uint8_t *group) {
    struct joined j = {.parts = d.count};
    unsigned groups = d.count < most ? d.count : most, part = 0;
    for (unsigned i = 0; i < d.count; i++)
        j.to[i] = (uint16_t)i;
    if (d.count > most)
        join_nearest(&j, d, most);
    for (unsigned i = 0; i < d.count; i++) {
        unsigned first = first_of(&j, i);
        group[i] = first == i ? (uint8_t)(part++ * groups / j.parts) : group[first];
    }
    return groups;
}

// ---- order --------------------------------------------------------------------------------------

static void lower(uint8_t *least, unsigned value) {
    if (value < *least)
        *least = (uint8_t)value;
}

static void order_of(unsigned own, const uint8_t *apart, unsigned groups, uint8_t *near) {
    unsigned n = 0;
    near[n++] = (uint8_t)own;
    for (unsigned far = 0; far < 256; far++)
        for (unsigned i = 1; i < groups; i++) {
            unsigned other = (own + i) % groups;
            if (apart[other] == far)
                near[n++] = (uint8_t)other;
        }
}

void pm_node_order(struct pm_node_distances d, const uint8_t *group, unsigned groups, uint8_t *near,
                   unsigned stride) {
    for (unsigned own = 0; own < groups; own++) {
        uint8_t apart[256];
        memset(apart, 255, sizeof apart);
        for (unsigned a = 0; a < d.count; a++)
            for (unsigned b = 0; b < d.count && group[a] == own; b++)
                lower(&apart[group[b]], distance(d, a, b));
        order_of(own, apart, groups, near + (size_t)own * stride);
    }
}
