// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Marking when the mark stacks overflow. The same blocks are alive with any number of markers.
#include "process/entry.h"

#include "heap_fixture.h"
#include "preload/pmalloc.h"
#include "process/before_main.h"
#include "process/open.h"

#define ARRAYS 64
#define LEAVES 32360 // together with the nodes about what a mark stack holds
#define NODES 400
#define FAN 64

static const char *markers;
static uint64_t allocated;

static void *object(size_t size) {
    void *p = pm_calloc(1, size);
    MUST(p != NULL);
    allocated++;
    return p;
}

// Three levels: when marking forgets a block, the blocks that only it reaches are missing, too.
static void **node(void) {
    void **node = object(FAN * sizeof *node);
    for (unsigned i = 0; i < FAN; i++) {
        void **link = node[i] = object(16);
        *link = object(16);
    }
    return node;
}

static void build(void) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    pm_process_before_main();
    void ***array = object(ARRAYS * sizeof *array);
    for (unsigned a = 0; a < ARRAYS; a++) {
        array[a] = object((LEAVES + NODES) * sizeof *array[a]);
        for (unsigned i = 0; i < LEAVES; i++)
            array[a][i] = object(16);
        for (unsigned i = LEAVES; i < LEAVES + NODES; i++)
            array[a][i] = node();
    }
    MUST(pmalloc_set_root(0, array) == 0);
    *(uint64_t *)array[0][0] = allocated;
    kill(getpid(), SIGKILL);
}

static void recovered(void) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_MARKERS", markers, 1);
    pm_process_before_main();
    void ***array = pmalloc_get_root(0);
    const struct pm_recovery *r = pm_process_recovery();
    CHECK_EQ(r->live_objects, *(uint64_t *)array[0][0]);
    CHECK(r->overflows > 0);
    kill(getpid(), check_failures ? SIGTERM : SIGKILL);
}

static void test_overflow(void) {
    static const char *const counts[] = {"1", "2", "3", "8"};
    CHECK_EQ(in_child(build), 128 + SIGKILL);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        markers = counts[i];
        CHECK_EQ(in_child(recovered), 128 + SIGKILL);
    }
}

int main(void) {
    RUN_CHILD(overflow);
    return CHECK_DONE();
}
