// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What is made durable, and in which order: a slab's header before the log names the slab, the new size before
// the old is forgotten, the state word alone; and nothing at all for cached small blocks.
//
// The recorder writes one letter a flush: H superblock, S slab headers, L log, D data, ? other; and . a drain.
#include "alloc.h"
#include "heap_fixture.h"
#include "pmalloc.h"
#include "runtime.h"

static char events[64];
static size_t event_count;

static void event(char what) {
    if (event_count < sizeof events - 1)
        events[event_count++] = what;
    events[event_count] = '\0';
}

static bool lies_in(const char *p, const struct pm_file *file) {
    return file->map && p >= file->map && p < file->map + file->reach;
}

static void record_flush(const void *addr, size_t len) {
    const char *p = addr;
    (void)len;
    event(lies_in(p, &pm_heap.super_file) ? 'H'
          : lies_in(p, &pm_heap.slabs)    ? 'S'
          : lies_in(p, &pm_heap.log)      ? 'L'
          : lies_in(p, &pm_heap.data)     ? 'D'
                                          : '?');
}

static void record_drain(void) { event('.'); }

// The events since the last call.
static const char *happened(void) {
    static char last[sizeof events];
    memcpy(last, events, sizeof last);
    event_count = 0;
    events[0] = '\0';
    return last;
}

static void start(void) {
    pm_options_default();
    fixture_new_heap();
    pm_persist = (struct pm_persist_ops){record_flush, record_drain};
    happened();
}

static void test_extents(void) {
    start();
    uint32_t a = pm_extent_take(10, 1);
    CHECK_STR(happened(), "");
    CHECK(pm_extent_publish(a, false));
    const char *first = happened(); // opens the log's first chunk
    CHECK(strlen(first) >= 2 && strspn(first, "L.") == strlen(first));
    CHECK_STR(first + strlen(first) - 2, "L.");
    uint32_t b = pm_extent_take(10, 1);
    CHECK(pm_extent_publish(b, false));
    CHECK_STR(happened(), "L.");
    CHECK(pm_extent_resize(b, 5));
    CHECK_STR(happened(), "L.L.");
    CHECK(pm_extent_resize(b, 7));
    CHECK_STR(happened(), "L.L.");
    CHECK(pm_extent_resize(b, 7));
    CHECK_STR(happened(), "");
    pm_extent_release(a);
    CHECK_STR(happened(), "L.");
    uint32_t slab = pm_slab_create(3, 0);
    CHECK(slab != 0);
    CHECK_STR(happened(), "S.L.");
    pm_slab_destroy(slab - 1);
    CHECK_STR(happened(), "L.");
}

static void test_state(void) {
    start();
    pm_heap_dirty();
    const char *dirty = happened();
    CHECK(strncmp(dirty, "H.", 2) == 0); // before anything else
    CHECK_EQ(dirty[strlen(dirty) - 1], '.');
    CHECK(pm_heap_clean());
    CHECK_STR(happened(), "H.");
}

static void test_small_blocks_cost_no_flush(void) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    pm_runtime_before_main();
    CHECK(pmalloc_is_persistent());
    void *warm[64];
    for (int i = 0; i < 64; i++)
        warm[i] = pm_malloc(64);
    pm_persist = (struct pm_persist_ops){record_flush, record_drain};
    happened();
    for (int i = 0; i < 64; i++)
        pm_free(warm[i]);
    for (int round = 0; round < 1000; round++) {
        void *p = pm_malloc(64), *q = pm_calloc(1, 60);
        pm_free(pm_realloc(p, 50));
        pm_free(q);
    }
    CHECK_STR(happened(), "");
    // A slab of 16-byte blocks: one header, one log entry, 4096 blocks.
    for (int i = 0; i < 4096; i++)
        pm_malloc(16);
    CHECK_STR(happened(), "S.L.");
    CHECK_EQ(pmalloc_set_root(3, warm), 0);
    CHECK_STR(happened(), "H.");
}

static void test_volatile_memory_never_flushes(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    pm_persist = (struct pm_persist_ops){record_flush, record_drain};
    for (size_t size = 1; size < 10 << 20; size *= 2)
        pm_free(pm_realloc(pm_malloc(size), size * 2));
    CHECK_STR(happened(), "");
}

int main(void) {
    RUN_CHILD(extents);
    RUN_CHILD(state);
    RUN_CHILD(small_blocks_cost_no_flush);
    RUN_CHILD(volatile_memory_never_flushes);
    return CHECK_DONE();
}
