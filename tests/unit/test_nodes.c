// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// NUMA nodes: what PMALLOC_TOPOLOGY and PMALLOC_NUMA say, and where threads are.
#include <pthread.h>

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
    static const char *const bad[] = {"2",      "2x",    "x2",   "0x2",   "2x0",
                                      "17x2",   "2x257", "2x4/", "2x4/0", "2x4x",
                                      "2x4/3k", "a",     "-2x4", "2x-4",  " 2x4 "};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(find(bad[i], "local"), PM_USAGE);
        CHECK_HAS(err.text, bad[i]);
        CHECK_HAS(err.text, "PMALLOC_TOPOLOGY=");
        CHECK_HAS(err.text, "NODESxCORES");
    }
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
    RUN(dealt);
    RUN(moves);
    return CHECK_DONE();
}
