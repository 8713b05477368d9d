// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What is made durable, and in which order: a slab's header before the log names the slab; the
// entry with an extent's new size before the old entry ends; the state word on its own. Cached
// small blocks flush nothing.
//
// The recorder writes one letter for each flush: H superblock, S slab headers, L log, D data, ?
// other. A drain is a dot.
#include "blocks/verify.h"
#include "heap_fixture.h"
#include "media/open/heap_open.h"
#include "preload/pmalloc.h"
#include "process/before_main.h"
#include "process/entry.h"
#include "recovery/offline.h"
#include "recovery/recover.h"

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
    event(lies_in(p, &pm_heap.super_file)       ? 'H'
          : lies_in(p, &pm_heap.shard[0].slabs) ? 'S'
          : lies_in(p, &pm_heap.shard[0].log)   ? 'L'
          : lies_in(p, &pm_heap.shard[0].data)  ? 'D'
                                                : '?');
}

static void record_drain(void) { event('.'); }

// Returns the events since the last call.
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
    const char *first = happened(); // with this the log opens its first chunk
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
    uint32_t slab = pm_slab_create(3, 0, 0);
    CHECK(slab != 0);
    CHECK_STR(happened(), "S.L.");
    pm_slab_destroy(slab - 1);
    CHECK_STR(happened(), "L.");
}

static void test_state(void) {
    start();
    pm_heap_dirty();
    const char *dirty = happened();
    CHECK(strncmp(dirty, "H.", 2) == 0); // the dirty state comes first
    CHECK_EQ(dirty[strlen(dirty) - 1], '.');
    CHECK(pm_heap_clean());
    CHECK_STR(happened(), "H.");
}

static void test_small_blocks_cost_no_flush(void) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    pm_process_before_main();
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
    CHECK_STR(happened(), "H.H."); // before its first root the heap gets a record of what is loaded
    CHECK_EQ(pmalloc_set_root(3, NULL), 0);
    CHECK_STR(happened(), "H.");
}

// ---- recovery -----------------------------------------------------------------------------------

static unsigned dead, flushes, drains;

static void count_flush(const void *addr, size_t len) {
    (void)addr, (void)len;
    flushes++;
}
static void count_drain(void) { drains++; }

// Leaves an unclean heap: one block that root slot 0 names, `dead` extents that nothing names, and
// a dead slab for every tenth of them.
static void leave_dead(void) {
    pm_options_default();
    fixture_new_heap();
    for (unsigned i = 0; i < dead; i++) {
        MUST(pm_extent_allocate(5, 1) != 0);
        MUST(i % 10 || pm_slab_create(3, 0, 0) != 0);
    }
    uint32_t kept = pm_extent_allocate(5, 1);
    MUST(kept != 0);
    char *p = pm_extent_address(&pm_extents[kept]);
    memset(p, 'k', 20000);
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)p);
}

static void check_kept(const struct pm_recovery *found, unsigned leaked) {
    struct pm_error err;
    const char *p = (const char *)(uintptr_t)pm_heap_slot(0);
    CHECK_EQ(found->live_objects, 1);
    CHECK_EQ(found->leaked_objects, leaked);
    CHECK_EQ(pm_extent_stats().active, leaked ? leaked + (leaked + 9) / 10 + 1 : 1);
    for (unsigned i = 0; i < 20000; i++)
        if (p[i] != 'k')
            CHECK_EQ(i, 20000);
    CHECK_EQ(pm_verify(!leaked, &err), PM_OK);
}

static void recover_counted(void) {
    struct pm_error err = {0};
    struct pm_recovery found;
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    pm_persist = (struct pm_persist_ops){count_flush, count_drain};
    CHECK_EQ(
        pm_recover(&(struct pm_recover_options){.write = true, .mark.markers = 1}, &found, &err),
        PM_OK);
    CHECK(flushes <= 12 && drains <= 8);
    CHECK_EQ(found.leaked_objects, dead);
    found.leaked_objects = 0;
    check_kept(&found, 0);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, 1);
    CHECK(pm_log_stats(&pm_heap.shard[0]).active <=
          4); // the few entries that stand were copied into few chunks
}

static void look(void) {
    struct pm_error err = {0};
    struct pm_recovery found;
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_READONLY, &err) == PM_OK);
    CHECK_EQ(pm_recover(&(struct pm_recover_options){.mark.markers = 1}, &found, &err), PM_OK);
    check_kept(&found, dead);
}

// Where the heap is a plain file, each flush waits for the disk. So recovery may not flush more for
// many dead extents than for few.
static void test_recovery_flushes_as_often_whatever_is_dead(void) {
    static const unsigned counts[] = {1, 300, 5000};
    for (unsigned i = 0; i < 3; i++) {
        dead = counts[i];
        CHECK_EQ(in_child(leave_dead), 0);
        CHECK_EQ(in_child(look), 0);
        CHECK_EQ(in_child(recover_counted), 0);
        dead = 0;
        CHECK_EQ(in_child(look), 0);
        nftw(fixture_dir, fixture_unlink, 16, FTW_DEPTH | FTW_PHYS);
    }
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
    RUN_CHILD(recovery_flushes_as_often_whatever_is_dead);
    RUN_CHILD(volatile_memory_never_flushes);
    return CHECK_DONE();
}
