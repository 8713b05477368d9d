// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// NUMA nodes: what PMALLOC_TOPOLOGY and PMALLOC_NUMA say, and where threads are.
#include <pthread.h>
#include <string.h>

#include "base/node_groups.h"
#include "base/nodes.h"
#include "base/options.h"
#include "check.h"

static struct pm_error err;

static int find(const char *topology, const char *numa) {
    pm_options_default();
    CHECK_EQ(pm_option_set("PMALLOC_NUMA", numa, &err), PM_OK);
    if (topology)
        CHECK_EQ(pm_option_set("PMALLOC_TOPOLOGY", topology, &err), PM_OK);
    return pm_nodes_find(&err);
}

static void test_machine(void) {
    CHECK_EQ(find(NULL, "local"), PM_OK);
    CHECK(pm_nodes.count >= 1 && pm_nodes.cores >= 1 && !pm_nodes.injected);
    CHECK(pm_node_now() < pm_nodes.count);
    CHECK(pm_node_look() < pm_nodes.count);
    unsigned cores = 0;
    for (unsigned i = 0; i < PM_NODES_MAX; i++)
        cores += pm_nodes.cores_of[i];
    CHECK(pm_nodes.count == 1 || cores == pm_nodes.cores);
}

static void test_off(void) {
    CHECK_EQ(find("4x2", "off"), PM_OK);
    CHECK(pm_nodes.count == 1 && !pm_nodes.injected && pm_node_now() == 0);
}

static void test_injected(void) {
    CHECK_EQ(find("3x5", "bind"), PM_OK);
    CHECK(pm_nodes.count == 3 && pm_nodes.injected && pm_nodes.cores >= 1);
    CHECK(pm_nodes.cores_of[0] == 5 && pm_nodes.cores_of[2] == 5 && pm_nodes.cores_of[3] == 0);
    CHECK_EQ(find("1x7", "local"), PM_OK);
    CHECK(pm_nodes.count == 1 && pm_nodes.cores_of[0] == 7);
}

static void test_bad(void) {
    static const char *const bad[] = {"2",     "2x",     "x2",   "0x2",   "2x0",  "1025x2",
                                      "2x257", "1024x5", "2x4/", "2x4/0", "2x4x", "2x4/3k",
                                      "a",     "-2x4",   "2x-4", " 2x4 "};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(find(bad[i], "local"), PM_USAGE);
        CHECK_HAS(err.text, bad[i]);
        CHECK_HAS(err.text, "PMALLOC_TOPOLOGY=");
        CHECK_HAS(err.text, "NODESxCORES");
    }
}

// Nodes that are near each other are one, where there are more than data files; the order of the
// groups is that of their first members.
static void test_groups(void) {
    static uint8_t row[256 * 256];
    uint8_t group[PM_KERNEL_NODES], near[16 * 16];
    for (unsigned a = 0; a < 64; a++) // sixteen sockets of four, the last two of them farther
        for (unsigned b = 0; b < 64; b++)
            row[a * 64 + b] = (uint8_t)(a == b                       ? 10
                                        : a % 16 == b % 16           ? 12
                                        : a % 16 / 14 == b % 16 / 14 ? 21
                                                                     : 40);
    struct pm_node_distances d = {64, row};
    CHECK_EQ(pm_node_groups(d, 16, group), 16);
    for (unsigned i = 0; i < 64; i++)
        CHECK_EQ(group[i], i % 16);
    pm_node_order(d, group, 16, near, 16);
    CHECK(near[15 * 16] == 15 && near[15 * 16 + 1] == 14 && near[15 * 16 + 2] == 0);
    CHECK(near[3 * 16] == 3 && near[3 * 16 + 1] == 4 && near[3 * 16 + 15] == 15);
    CHECK_EQ(pm_node_groups((struct pm_node_distances){256, NULL}, 16, group), 16);
    for (unsigned i = 0; i < 256; i++)
        CHECK_EQ(group[i], i / 16);
    CHECK_EQ(pm_node_groups((struct pm_node_distances){1024, NULL}, 16, group), 16);
    CHECK_EQ(group[1023], 15);
    memset(row, 20, sizeof row); // 24 pairs: more than groups, so neighbours go together
    for (unsigned a = 0; a < 48; a++)
        row[a * 48 + (a ^ 1)] = 11;
    CHECK_EQ(pm_node_groups((struct pm_node_distances){48, row}, 16, group), 16);
    unsigned members[16] = {0};
    for (unsigned i = 0; i < 48; i++) {
        CHECK_EQ(group[i], group[i ^ 1]);
        members[group[i]]++;
    }
    for (unsigned i = 0; i < 16; i++)
        CHECK(members[i] == 2 || members[i] == 4);
    CHECK_EQ(pm_node_groups((struct pm_node_distances){16, row}, 16, group), 16);
    CHECK(group[0] == 0 && group[15] == 15);
}

// More than there can be data files.
static void test_many(void) {
    CHECK_EQ(find("64x2", "local"), PM_OK);
    CHECK(pm_nodes.count == 16 && pm_nodes.machine == 64 && pm_nodes.cores_of[15] == 8);
    pm_node_move(63);
    CHECK(pm_node_look() == 15 && pm_node_has(15, 63) && pm_node_has(15, 60));
    CHECK(!pm_node_has(15, 59) && !pm_node_has(0, 64));
    CHECK_EQ(find("1024x4", "local"), PM_OK);
    CHECK(pm_nodes.count == 16 && pm_nodes.machine == 1024 && pm_nodes.cores_of[0] == 64 * 4);
    CHECK_EQ(find("2x1", "local"), PM_OK);
    CHECK(pm_node_has(1, 1) && !pm_node_has(1, 2) && !pm_node_has(15, 63));
    CHECK_EQ(find("/dev/null/", "local"), PM_USAGE);
    CHECK_HAS(err.text, "has_cpu");
}

static void *where(void *arg) {
    unsigned *seen = arg;
    for (unsigned i = 0; i < 12; i++)
        seen[i] = pm_node_now();
    return NULL;
}

// Each new thread is on the next node, and stays.
static void test_dealt(void) {
    CHECK_EQ(find("3x2", "local"), PM_OK);
    unsigned seen[6][12];
    for (unsigned i = 0; i < 6; i++) {
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, where, seen[i]), 0);
        pthread_join(thread, NULL);
        for (unsigned j = 0; j < 12; j++)
            CHECK_EQ(seen[i][j], (seen[0][0] + i) % 3);
    }
}

static void test_moves(void) {
    CHECK_EQ(find("3x2/4", "local"), PM_OK);
    unsigned seen[12];
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, where, seen), 0);
    pthread_join(thread, NULL);
    for (unsigned j = 0; j < 12; j++)
        CHECK_EQ(seen[j], (seen[0] + (j + 1) / 4) % 3);
    pm_node_move(2);
    CHECK_EQ(pm_node_now(), 2);
}

int main(void) {
    RUN(machine);
    RUN(off);
    RUN(injected);
    RUN(bad);
    RUN(groups);
    RUN(many);
    RUN(dealt);
    RUN(moves);
    return CHECK_DONE();
}
