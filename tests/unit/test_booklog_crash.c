// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The bookkeeping log under power failure. A recorder in place of the persistence operations keeps an image
// of what is on media: a line gets there when it was flushed before a drain, or at a whim of the cache. At
// random drains the power fails: the image is replayed and must hold every entry that was durable and none
// that had ended, whatever was under way (append, tombstone, fast or slow GC); then it must go on working.
#include "booklog_model.h"

#define IMAGE (256u << 10)
#define LINE 64

static char image[IMAGE];          // media
static bool flushed[IMAGE / LINE]; // since the last drain
static bool armed;
static unsigned one_in = 50; // drains that fail
static unsigned crashes, in_gc;

// The operation under way: a crash in it may leave the page as it was or as it will be.
static uint64_t op_page = UINT64_MAX, op_before, op_after;

static void record_flush(const void *addr, size_t len) {
    uint64_t at = (uint64_t)((const char *)addr - pm_heap.log.map);
    if (at >= IMAGE)
        return; // another file's
    for (uint64_t line = at / LINE; line <= (at + len - 1) / LINE && line < IMAGE / LINE; line++)
        flushed[line] = true;
}

static size_t log_size(void) { return pm_heap.log.size < IMAGE ? pm_heap.log.size : IMAGE; }

// The image as a log of its own, on a file that may grow.
static void become_image(void) {
    int fd = memfd_create("log", MFD_CLOEXEC);
    struct stat st;
    MUST(fd >= 0 && write(fd, image, log_size()) == (ssize_t)log_size() && fstat(fd, &st) == 0);
    pm_heap.log.size = log_size();
    pm_heap.log.fd = fd;
    pm_heap.log.dev = st.st_dev;
    pm_heap.log.ino = st.st_ino;
    pm_heap.log.map =
        mmap(NULL, pm_heap.log.reach, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    MUST(pm_heap.log.map != MAP_FAILED);
}

static unsigned go_on = 300;

static void after_crash(void) {
    armed = false;
    // Lines that were not flushed are on media or not, as the cache pleased.
    for (size_t line = 0; line < log_size() / LINE; line++)
        if (rnd(2))
            memcpy(image + line * LINE, pm_heap.log.map + line * LINE, LINE);
    become_image();
    pm_persist = (struct pm_persist_ops){record_flush, pm_persist.drain};
    replay();
    if (op_page != UINT64_MAX) {
        bool before = seen[op_page] == op_before, after = seen[op_page] == op_after;
        CHECK(before || after);
        model[op_page] = seen[op_page];
    }
    for (unsigned page = 0; page < MODEL_PAGES; page++)
        model_pos[page] = seen_pos[page];
    compare();
    model_live = seen_count;
    pm_log_activate();
    // Then go on with it: what was left half done must not wake up later.
    for (unsigned i = 0; i < go_on; i++)
        step(200);
    replay();
    compare();
}

static void record_drain(void) {
    if (!armed)
        return;
    if (rnd(one_in) == 0) {
        crashes++;
        CHECK_EQ(in_child(after_crash), 0);
        rnd(7); // the child had its own copy of the seed
    }
    for (size_t line = 0; line < log_size() / LINE; line++)
        if (flushed[line])
            memcpy(image + line * LINE, pm_heap.log.map + line * LINE, LINE);
    memset(flushed, 0, sizeof flushed);
}

static void arm(void) {
    memcpy(image, pm_heap.log.map, log_size());
    pm_persist = (struct pm_persist_ops){record_flush, record_drain};
    armed = true;
}

static void crashing_step(unsigned want) {
    uint64_t page = rnd(MODEL_PAGES / 2);
    bool grow = rnd(2 * want) >= model_live;
    for (unsigned i = 0; i < MODEL_PAGES / 2 && (model[page] == 0) != grow; i++)
        page = (page + 1) % (MODEL_PAGES / 2);
    struct pm_log_stats before = pm_log_stats();
    static uint64_t stamp;
    stamp = stamp % PM_ENTRY_PAGES_MAX + 1;
    op_page = page;
    op_before = model[page];
    op_after = grow ? pm_entry_make(PM_ENTRY_EXTENT, page, stamp) : 0;
    if (grow)
        model_note(page, op_after, pm_log_append(op_after));
    else
        model_end(page);
    op_page = UINT64_MAX;
    struct pm_log_stats after = pm_log_stats();
    in_gc += after.fast_gcs != before.fast_gcs;
}

static void churn(int steps, unsigned want) {
    for (int i = 0; i < steps && !check_failures; i++)
        crashing_step(want);
}

static void test_crash_at_any_drain(void) {
    log_new();
    arm();
    churn(12000, 300);
    CHECK(pm_log_stats().slow_gcs > 0);
    CHECK(log_size() < IMAGE);
    printf("  %u crashes\n", crashes);
}

// Few entries live, so that chunks die and fast GC drops and reuses them all the time.
static void test_crash_with_short_lives(void) {
    log_new();
    one_in = 100;
    arm();
    churn(20000, 10);
    CHECK(pm_log_stats().fast_gcs > 0);
    printf("  %u crashes\n", crashes);
}

// Every drain of the operations that collect: steps are made until a collection is due, then all fail.
static void test_crash_at_each_step_of_a_collection(void) {
    log_new();
    one_in = 1u << 30;
    go_on = 4000; // beyond the next flip
    arm();
    for (int rounds = 0; rounds < 12 && !check_failures; rounds++) {
        uint64_t slow = pm_log_stats().slow_gcs;
        while (pm_log_stats().active < 16)
            crashing_step(300);
        for (int i = 0; i < 200 && pm_log_stats().slow_gcs == slow; i++) {
            // A new chunk, and with it a collection, comes with every 126th entry.
            one_in = 1;
            crashing_step(300);
            one_in = i % 100 == 99 ? 1 : 1u << 30;
        }
        one_in = 1u << 30;
        churn(1000, 300);
    }
    CHECK(pm_log_stats().slow_gcs > 2);
    printf("  %u crashes, %lu slow collections\n", crashes, (unsigned long)pm_log_stats().slow_gcs);
}

// Every drain while the file grows: chunks that were never there before.
static void test_crash_while_growing(void) {
    log_new();
    one_in = 1;
    go_on = 30;
    arm();
    churn(1500, 2000);
    CHECK(pm_log_stats().chunks > 10);
    printf("  %u crashes\n", crashes);
}

int main(void) {
    RUN_CHILD(crash_at_any_drain);
    RUN_CHILD(crash_with_short_lives);
    RUN_CHILD(crash_while_growing);
    RUN_CHILD(crash_at_each_step_of_a_collection);
    return CHECK_DONE();
}
