// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The bookkeeping log against a model: appending and ending entries, dropping dead chunks,
// compaction, reopening, damage. test_log_crash.c tests what a crash leaves of it.
#include "base/crc.h"
#include "booklog_model.h"

static void test_append_and_end(void) {
    log_new();
    pm_log_pos a =
        pm_log_append(&pm_heap.shard[0], pm_entry_make(PM_ENTRY_EXTENT, 5, 9), model_moved);
    pm_log_pos b =
        pm_log_append(&pm_heap.shard[0], pm_entry_make(PM_ENTRY_SLAB, 16, 16), model_moved);
    CHECK(a != PM_LOG_NOWHERE && b != PM_LOG_NOWHERE && a != b);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, 2);
    pm_log_end(&pm_heap.shard[0], &a, model_moved);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, 1);
    struct pm_error err;
    seen_reset();
    CHECK_EQ(pm_log_load(&pm_heap.shard[0], see, &err), PM_OK);
    CHECK_EQ(seen_count, 1);
    CHECK_EQ(seen[16], pm_entry_make(PM_ENTRY_SLAB, 16, 16));
    CHECK_EQ(seen_pos[16], b);
    pm_log_activate(&pm_heap.shard[0]);
    pm_log_erase(&pm_heap.shard[0], b);
    seen_reset();
    CHECK_EQ(pm_log_load(&pm_heap.shard[0], see, &err), PM_OK);
    CHECK_EQ(seen_count, 0);
}

// Consecutive entries go to different cache lines, and every slot of a chunk is used once.
static void test_interleaving(void) {
    log_new();
    bool used[PM_CHUNK_SIZE / 8] = {false};
    long last[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    for (unsigned k = 0; k < PM_CHUNK_ENTRIES; k++) {
        pm_log_pos pos =
            pm_log_append(&pm_heap.shard[0], pm_entry_make(PM_ENTRY_EXTENT, k, 1), model_moved);
        CHECK_EQ(pos >> 7, 0);
        unsigned word = (pos & 127) + 2; // the chunk's header has 16 bytes
        CHECK(word < PM_CHUNK_SIZE / 8 && !used[word]);
        used[word] = true;
        for (unsigned i = 0; i < 8; i++)
            CHECK(last[i] != (long)(word / 8));
        last[k % 8] = (long)(word / 8);
    }
    CHECK(pm_log_append(&pm_heap.shard[0], pm_entry_make(PM_ENTRY_EXTENT, 1000, 1), model_moved) >>
              7 ==
          1);
}

static void test_model_with_reopening(void) {
    log_new();
    for (int batch = 0; batch < 60; batch++) {
        unsigned want = (unsigned)rnd(1500);
        for (int i = 0; i < 1000; i++)
            step(want);
        check_model_matches();
        uint64_t bound = pm_log_stats(&pm_heap.shard[0]).live * 2 / PM_CHUNK_ENTRIES;
        CHECK(pm_log_stats(&pm_heap.shard[0]).active <= (bound < 16 ? 16 : bound) + 2);
        CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, model_live);
        reload();
    }
}

static void test_drops_and_compactions_happen(void) {
    log_new();
    // Entries live for so short a time that whole chunks die.
    for (int i = 0; i < 20000; i++)
        step(20);
    struct pm_log_stats young = pm_log_stats(&pm_heap.shard[0]);
    CHECK(young.chunk_drops > 0);
    CHECK(young.active <= 17);
    CHECK(young.chunks <= 40);
    // One entry in each chunk lives on, so only compaction frees chunks.
    for (unsigned page = 2000; page < 2064; page++) {
        model_append(page);
        for (int i = 0; i < 200; i++)
            step(20);
    }
    for (int i = 0; i < 20000; i++)
        step(20);
    struct pm_log_stats old = pm_log_stats(&pm_heap.shard[0]);
    CHECK(old.compactions > 0);
    CHECK(old.active <= 17);
    CHECK(old.chunks <= 60);
    check_model_matches();
    reload();
    printf("  %lu chunk drops, %lu compactions, %lu chunks\n", (unsigned long)old.chunk_drops,
           (unsigned long)old.compactions, (unsigned long)old.chunks);
}

// The oldest entry always ends first, so chunks die in the order in which they were filled.
// Dropping dead chunks is enough.
static void test_drops_alone(void) {
    log_new();
    for (unsigned i = 0; i < 20000; i++) {
        model_append(i % MODEL_PAGES);
        if (i >= 10)
            model_end((i - 10) % MODEL_PAGES);
    }
    CHECK(pm_log_stats(&pm_heap.shard[0]).chunk_drops > 0);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).compactions, 0);
    CHECK(pm_log_stats(&pm_heap.shard[0]).active <= 17);
    check_model_matches();
}

// A compaction ends with the commit of a new epoch. An interrupted compaction has written chunks of
// that epoch. They must stay dead when a later compaction commits the same epoch.
static void test_an_interrupted_compaction(void) {
    log_new();
    // The log becomes long, so that most of its chunks are free when it is short again.
    pm_heap.shard[0].frontier = 64ull << 20;
    for (int i = 0; i < 20000; i++)
        step(300);
    pm_heap.shard[0].frontier = 0;
    while (pm_log_stats(&pm_heap.shard[0]).compactions == 0)
        step(300);
    struct pm_log_header *h = (struct pm_log_header *)pm_heap.shard[0].log.map;
    struct pm_log_chunk *c = (struct pm_log_chunk *)(h + 1);
    unsigned left = 0;
    for (uint32_t id = (uint32_t)pm_log_stats(&pm_heap.shard[0]).chunks; id-- > 0;)
        if (pm_unseal(c[id].epoch) != pm_unseal(h->epoch)) {
            c[id].epoch = pm_seal(pm_unseal(h->epoch) + 1, PM_SALT_CHUNK_EPOCH(id));
            c[id].entry[5] = pm_entry_make(PM_ENTRY_EXTENT, MODEL_PAGES - 1 - left++, 77);
        }
    CHECK(left > 60); // more than the next compaction uses
    reload();
    for (int compaction = 0; compaction < 2; compaction++) {
        uint64_t before = pm_log_stats(&pm_heap.shard[0]).compactions;
        while (pm_log_stats(&pm_heap.shard[0]).compactions == before)
            step(300);
        check_model_matches();
    }
    reload();
}

static void test_the_bound_follows_the_heap(void) {
    log_new();
    pm_heap.shard[0].frontier = 64ull << 20; // the log may have 0.2% of it: 131 chunks
    for (int i = 0; i < 120 * 63; i++) {
        model_append(1);
        model_end(1);
    }
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).chunk_drops, 0);
    for (int i = 0; i < 40 * 63; i++) {
        model_append(1);
        model_end(1);
    }
    CHECK(pm_log_stats(&pm_heap.shard[0]).chunk_drops > 0);
    CHECK(pm_log_stats(&pm_heap.shard[0]).active <= 132);
    check_model_matches();
}

// There is no room for another chunk. Appending fails, ending an entry succeeds, and nothing is
// lost.
static void test_no_room(void) {
    log_new();
    pm_heap.shard[0].log.reach = sizeof(struct pm_log_header) + 8 * PM_CHUNK_SIZE;
    unsigned page = 0;
    for (pm_log_pos pos;; page++) {
        uint64_t entry = pm_entry_make(PM_ENTRY_EXTENT, page, 3);
        pos = pm_log_append(&pm_heap.shard[0], entry, model_moved);
        if (pos == PM_LOG_NOWHERE)
            break;
        model_note(page, entry, pos);
    }
    CHECK_EQ(page, 8 * PM_CHUNK_ENTRIES);
    for (unsigned i = 0; i < page; i += 3)
        model_end(i);
    check_model_matches();
    reload();
    for (unsigned i = 0; i < page; i++)
        if (model[i])
            model_end(i);
    reload();
    model_append(7);
    reload();
    pm_heap.shard[0].log.reach = (size_t)1 << 30;
}

static void test_reset(void) {
    log_new();
    for (int i = 0; i < 3000; i++)
        step(500);
    CHECK(pm_log_reset(&pm_heap.shard[0]));
    memset(model, 0, sizeof model);
    model_live = 0;
    check_model_matches();
    for (int i = 0; i < 3000; i++)
        step(500);
    reload();
}

// ---- damage -------------------------------------------------------------------------------------

static struct pm_log_chunk *chunk(unsigned id) {
    return (struct pm_log_chunk *)(pm_heap.shard[0].log.map + sizeof(struct pm_log_header)) + id;
}

static void refused(const char *part) {
    struct pm_error err = {0};
    seen_reset();
    CHECK_EQ(pm_log_load(&pm_heap.shard[0], see, &err), PM_DAMAGE);
    CHECK_HAS(err.text, part);
    CHECK_HAS(err.text, "booklog.0");
    CHECK(strchr(err.text, '\n') == NULL);
}

// Appends a forged word to the second chunk, sealed as an entry is.
static void append_raw(uint64_t entry) {
    replay(); // replays the log without the damage of the last call
    pm_log_activate(&pm_heap.shard[0]);
    CHECK_EQ(pm_log_append(&pm_heap.shard[0], entry, model_moved) >> 7, 1);
}

// Where the newest entry stands: its word, counted from the first chunk's entries.
static unsigned last_entry(void) {
    return (model_pos[200] >> 7) * (PM_CHUNK_SIZE / 8) + (model_pos[200] & 127);
}

static void test_damage_is_refused(void) {
    log_new();
    for (unsigned page = 0; page < 200; page++)
        model_append(page);
    model_end(3);
    struct pm_log_header *h = (struct pm_log_header *)pm_heap.shard[0].log.map;
    struct pm_log_header good = *h;
    h->magic ^= 1;
    refused("not a bookkeeping log");
    *h = good;
    h->version++;
    refused("not a bookkeeping log");
    *h = good;
    h->chunk_size *= 2;
    refused("not a bookkeeping log");
    *h = good;
    h->epoch ^= 1ull << 40;
    refused("epoch");
    h->epoch = pm_seal(UINT32_MAX, PM_SALT_LOG_EPOCH);
    refused("epoch");
    *h = good;
    h->chunks = pm_seal(100, PM_SALT_LOG_CHUNKS);
    refused("truncated");
    h->chunks = 0;
    refused("number of chunks");
    *h = good;
    struct pm_log_chunk kept = *chunk(1);
    chunk(1)->generation++;
    refused("chunk 1");
    *chunk(1) = kept;
    chunk(1)->epoch = 0; // the chunk would leave the log with its entries
    refused("chunk 1");
    *chunk(1) = *chunk(0);
    refused("chunk 1");
    *chunk(1) = (struct pm_log_chunk){0};
    refused("chunk 1");
    *chunk(1) = kept;
    append_raw(pm_entry_make(PM_ENTRY_TOMBSTONE, 99999 << 7, 1));
    refused("outside the log");
    *chunk(1) = kept;
    append_raw(pm_entry_make(PM_ENTRY_TOMBSTONE, 126, 1));
    refused("outside the log");
    *chunk(1) = kept;
    append_raw(pm_entry_make(PM_ENTRY_TOMBSTONE, model_pos[3], pm_unseal(chunk(0)->generation)));
    refused("does not stand");
    *chunk(1) = kept;
    append_raw(0xffff0000);
    refused("is no entry");
    *chunk(1) = kept;
    check_model_matches();
}

// No entry changes unnoticed: not by one to three flipped bits, not when it becomes zero, not when
// another entry of the same log stands in its place.
static void test_no_entry_changes_or_goes_unnoticed(void) {
    log_new();
    for (unsigned page = 0; page < 200; page++)
        model_append(page);
    model_end(3);
    pm_log_erase(&pm_heap.shard[0], model_pos[150]);
    model[150] = 0;
    model_live--;
    model_append(200);
    uint64_t *first = chunk(0)->entry;
    for (unsigned i = 0; i < 2 * PM_CHUNK_SIZE / 8 - 2; i++) {
        uint64_t kept = first[i];
        bool header = i == PM_CHUNK_ENTRIES || i == PM_CHUNK_ENTRIES + 1;
        if (kept == 0 || header)
            continue;
        for (unsigned bit = 0; bit < 64; bit++) {
            first[i] =
                kept ^ (1ull << bit | 1ull << (bit * 7 + i) % 64 | 1ull << (bit * 31 + 5) % 64);
            if (first[i] != kept)
                refused("booklog.0");
        }
        first[i] = first[(i + 1) % PM_CHUNK_ENTRIES];
        refused("is no entry");
        // No later entry shows that the newest one is missing. The clean close does.
        bool last = i == last_entry();
        first[i] = 0;
        if (!last)
            refused("lost");
        first[i] = kept;
    }
    check_model_matches();
}

static int refuse_all(struct pm_shard *s, uint64_t entry, pm_log_pos pos, struct pm_error *err) {
    (void)s, (void)entry, (void)pos;
    return pm_fail(err, PM_DAMAGE, "no");
}

static void test_a_refusal_stops_the_replay(void) {
    log_new();
    model_append(1);
    struct pm_error err = {0};
    CHECK_EQ(pm_log_load(&pm_heap.shard[0], refuse_all, &err), PM_DAMAGE);
    CHECK_STR(err.text, "no");
}

int main(void) {
    RUN_CHILD(append_and_end);
    RUN_CHILD(interleaving);
    RUN_CHILD(model_with_reopening);
    RUN_CHILD(drops_and_compactions_happen);
    RUN_CHILD(drops_alone);
    RUN_CHILD(an_interrupted_compaction);
    RUN_CHILD(the_bound_follows_the_heap);
    RUN_CHILD(no_room);
    RUN_CHILD(reset);
    RUN_CHILD(damage_is_refused);
    RUN_CHILD(no_entry_changes_or_goes_unnoticed);
    RUN_CHILD(a_refusal_stops_the_replay);
    return CHECK_DONE();
}
