// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The bookkeeping log under power failure. A recorder replaces flush and drain, and keeps an image
// of what is on media. A line reaches the image when it is drained after a flush, or by chance. At
// random drains the power fails. The image is replayed. It must hold every entry that was durable
// and none that had ended, whatever was under way: appending, a tombstone, dropping chunks, or
// compaction. Then the log must go on working.
#include "booklog_model.h"

#define IMAGE (256u << 10)
#define LINE 64

static char image[IMAGE];          // media
static bool flushed[IMAGE / LINE]; // since the last drain
static bool armed;
static unsigned one_in = 50; // the power fails at one drain in so many
static unsigned crashes;

// The operation under way. After a crash its page is as before the operation or as after it.
static uint64_t op_page = UINT64_MAX, op_before, op_after;

// The same for a group of entries.
static uint64_t group_page[64], group_after[64];
static unsigned group_count;

static void record_flush(const void *addr, size_t len) {
    uint64_t at = (uint64_t)((const char *)addr - pm_heap.shard[0].log.map);
    if (at >= IMAGE)
        return; // a flush of another file
    for (uint64_t line = at / LINE; line <= (at + len - 1) / LINE && line < IMAGE / LINE; line++)
        flushed[line] = true;
}

static size_t log_size(void) {
    return pm_heap.shard[0].log.size < IMAGE ? pm_heap.shard[0].log.size : IMAGE;
}

// Makes the image the log, on a file that may grow.
static void become_image(void) {
    int fd = memfd_create("log", MFD_CLOEXEC);
    struct stat st;
    MUST(fd >= 0 && write(fd, image, log_size()) == (ssize_t)log_size() && fstat(fd, &st) == 0);
    pm_heap.shard[0].log.size = log_size();
    pm_heap.shard[0].log.fd = fd;
    pm_heap.shard[0].log.dev = st.st_dev;
    pm_heap.shard[0].log.ino = st.st_ino;
    pm_heap.shard[0].log.map = mmap(NULL, pm_heap.shard[0].log.reach, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_NORESERVE, fd, 0);
    MUST(pm_heap.shard[0].log.map != MAP_FAILED);
}

static unsigned go_on = 300;

static void after_crash(void) {
    armed = false;
    // The cache may have written back any line that was not flushed, or not.
    for (size_t line = 0; line < log_size() / LINE; line++)
        if (rnd(2))
            memcpy(image + line * LINE, pm_heap.shard[0].log.map + line * LINE, LINE);
    become_image();
    pm_persist = (struct pm_persist_ops){record_flush, pm_persist.drain};
    replay();
    if (op_page != UINT64_MAX) {
        bool before = seen[op_page] == op_before, after = seen[op_page] == op_after;
        CHECK(before || after);
        model[op_page] = seen[op_page];
    }
    for (unsigned i = 0; i < group_count; i++) {
        CHECK(seen[group_page[i]] == 0 || seen[group_page[i]] == group_after[i]);
        model[group_page[i]] = seen[group_page[i]];
    }
    for (unsigned page = 0; page < MODEL_PAGES; page++)
        model_pos[page] = seen_pos[page];
    compare();
    model_live = seen_count;
    pm_log_activate(&pm_heap.shard[0]);
    // Then the log is used. What the crash left half done must never come into force.
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
        rnd(7); // the child drew from a copy of the seed; the parent must move on, too
    }
    for (size_t line = 0; line < log_size() / LINE; line++)
        if (flushed[line])
            memcpy(image + line * LINE, pm_heap.shard[0].log.map + line * LINE, LINE);
    memset(flushed, 0, sizeof flushed);
}

static void arm(void) {
    memcpy(image, pm_heap.shard[0].log.map, log_size());
    pm_persist = (struct pm_persist_ops){record_flush, record_drain};
    armed = true;
}

static void crashing_step(unsigned want) {
    uint64_t page = rnd(MODEL_PAGES / 2);
    bool grow = rnd(2 * want) >= model_live;
    for (unsigned i = 0; i < MODEL_PAGES / 2 && (model[page] == 0) != grow; i++)
        page = (page + 1) % (MODEL_PAGES / 2);
    static uint64_t stamp;
    stamp = stamp % PM_ENTRY_PAGES_MAX + 1;
    op_page = page;
    op_before = model[page];
    op_after = grow ? pm_entry_make(PM_ENTRY_EXTENT, page, stamp) : 0;
    if (grow)
        model_note(page, op_after, pm_log_append(&pm_heap.shard[0], op_after, model_moved));
    else
        model_end(page);
    op_page = UINT64_MAX;
}

static void churn(int steps, unsigned want) {
    for (int i = 0; i < steps && !check_failures; i++)
        crashing_step(want);
}

static void test_crash_at_any_drain(void) {
    log_new();
    arm();
    churn(12000, 300);
    CHECK(pm_log_stats(&pm_heap.shard[0]).compactions > 0);
    CHECK(log_size() < IMAGE);
    printf("  %u crashes\n", crashes);
}

// Few entries live at a time, so chunks die, are dropped and used again all the time.
static void test_crash_with_short_lives(void) {
    log_new();
    one_in = 100;
    arm();
    churn(20000, 10);
    CHECK(pm_log_stats(&pm_heap.shard[0]).chunk_drops > 0);
    printf("  %u crashes\n", crashes);
}

// The power fails at every drain of every step, until the log has been compacted. This is done at
// twelve points of the log's life.
static void test_crash_at_each_step_of_a_compaction(void) {
    log_new();
    one_in = 1u << 30;
    go_on = 4000; // enough steps for another compaction to commit
    arm();
    for (int rounds = 0; rounds < 12 && !check_failures; rounds++) {
        uint64_t before = pm_log_stats(&pm_heap.shard[0]).compactions;
        while (pm_log_stats(&pm_heap.shard[0]).active < 16)
            crashing_step(300);
        for (int i = 0; i < 200 && pm_log_stats(&pm_heap.shard[0]).compactions == before; i++) {
            // Every 126th entry needs a new chunk, and that may start a compaction.
            one_in = 1;
            crashing_step(300);
            one_in = i % 100 == 99 ? 1 : 1u << 30;
        }
        one_in = 1u << 30;
        churn(1000, 300);
    }
    CHECK(pm_log_stats(&pm_heap.shard[0]).compactions > 2);
    printf("  %u crashes, %lu compactions\n", crashes,
           (unsigned long)pm_log_stats(&pm_heap.shard[0]).compactions);
}

// The power fails at every drain while the file grows by chunks that were never used before.
static void test_crash_while_growing(void) {
    log_new();
    one_in = 1;
    go_on = 30;
    arm();
    churn(1500, 2000);
    CHECK(pm_log_stats(&pm_heap.shard[0]).chunks > 10);
    printf("  %u crashes\n", crashes);
}

// ---- groups, where a flush waits ----------------------------------------------------------------

#define GROUP 40u

// Appends entries of pages that have none. A power failure may leave any of them.
static void crashing_group(unsigned want) {
    uint64_t entry[GROUP];
    pm_log_pos pos[GROUP];
    group_count = 0;
    for (unsigned tries = 0; tries < 3 * GROUP && group_count < 1 + want % GROUP; tries++) {
        uint64_t page = rnd(MODEL_PAGES / 2);
        bool twice = model[page] != 0;
        for (unsigned i = 0; i < group_count; i++)
            twice |= group_page[i] == page;
        if (twice)
            continue;
        entry[group_count] = pm_entry_make(PM_ENTRY_EXTENT, page, 1 + rnd(9000));
        group_page[group_count] = page;
        group_after[group_count] = entry[group_count];
        group_count++;
    }
    unsigned count = group_count;
    CHECK_EQ(pm_log_append_group(&pm_heap.shard[0], entry, pos, count, model_moved), count);
    group_count = 0;
    for (unsigned i = 0; i < count; i++)
        model_note(group_page[i], entry[i], pos[i]);
}

static void churn_groups(unsigned steps, unsigned most) {
    for (unsigned i = 0; i < steps && !check_failures; i++) {
        if (model_live < most)
            crashing_group((unsigned)rnd(GROUP));
        for (unsigned ends = (unsigned)rnd(GROUP); ends && model_live; ends--)
            crashing_step(1);
    }
}

static void test_crash_amid_groups(void) {
    log_new();
    pm_durability = PM_DURABLE_PAGE;
    one_in = 40;
    arm();
    churn_groups(900, 500);
    uint64_t chunks = pm_log_stats(&pm_heap.shard[0]).chunks;
    CHECK(chunks < 16);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).compactions, 0);
    printf("  %u crashes, %lu chunks\n", crashes, (unsigned long)chunks);
}

// A heap is copied from a disk to other media and back.
static void test_crash_as_media_change(void) {
    log_new();
    one_in = 60;
    arm();
    for (unsigned round = 0; round < 12 && !check_failures; round++) {
        pm_durability = round % 2 ? PM_DURABLE_PAGE : PM_DURABLE_LINE;
        if (round % 2)
            churn_groups(100, 600);
        else
            churn(1500, 300);
        armed = false;
        reload();
        arm();
    }
    printf("  %u crashes\n", crashes);
}

int main(void) {
    RUN_CHILD(crash_amid_groups);
    RUN_CHILD(crash_as_media_change);
    RUN_CHILD(crash_at_any_drain);
    RUN_CHILD(crash_with_short_lives);
    RUN_CHILD(crash_while_growing);
    RUN_CHILD(crash_at_each_step_of_a_compaction);
    return CHECK_DONE();
}
