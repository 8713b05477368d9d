// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Frees of pinned blocks by threads of other nodes: what they store where, what a kill leaves of
// them, and when their blocks come back. And such frees of blocks of the other kinds.
#include <pthread.h>

#include "base/nodes.h"
#include "blocks/returns.h"
#include "blocks/stats.h"
#include "media/log/dealloc.h"
#include "media/log/log_chunks.h"
#include "session.h"

#define SIZE 64u

// ---- flushes ------------------------------------------------------------------------------------

static unsigned here; // the node of the test's thread
static struct { uint64_t local, remote, drains, rounds; } flushed;

static bool lies_in(const void *at, const struct pm_file *file) {
    return file->map && (const char *)at >= file->map && (const char *)at < file->map + file->reach;
}

// Whether all entries were set to 0 durably, and not stored to since.
static enum { ENTRIES_OLD, ENTRIES_FLUSHED, ENTRIES_GONE } entries;

// All entries are gone before the lowest bits of a generation come again.
static void look_at_flush(const uint64_t *addr, size_t len) {
    if (len == sizeof(uint64_t) * PM_DEALLOC_ENTRIES)
        entries = ENTRIES_FLUSHED;
    for (unsigned s = 0; s < pm_heap.shards; s++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++) {
            const struct pm_dealloc_log *m = &pm_log_head(&pm_heap.shard[s])->dealloc[log];
            if (addr != &m->generation)
                continue;
            if (pm_unseal(*addr) % PM_DEALLOC_GENERATIONS == 0)
                CHECK_EQ(entries, ENTRIES_GONE);
            flushed.rounds += pm_unseal(*addr) % PM_DEALLOC_GENERATIONS == 0;
            entries = ENTRIES_OLD;
        }
}

static void count_flush(const void *addr, size_t len) {
    look_at_flush(addr, len);
    for (unsigned i = 0; i < pm_heap.shards; i++) {
        const struct pm_shard *s = &pm_heap.shard[i];
        if (lies_in(addr, &s->slabs) || lies_in(addr, &s->log) || lies_in(addr, &s->morph))
            *(s->node == here ? &flushed.local : &flushed.remote) += 1;
    }
}

static void count_drain(void) {
    flushed.drains++;
    if (entries == ENTRIES_FLUSHED)
        entries = ENTRIES_GONE;
}

static void count_anew(void) {
    memset(&flushed, 0, sizeof flushed);
    pm_persist = (struct pm_persist_ops){count_flush, count_drain};
}

// ---- what children tell the next ----------------------------------------------------------------

static struct {
    unsigned count;
    void *at[8192];
} * told;

static void note(void *p) { told->at[told->count++] = p; }

static unsigned walked, known;

static int count_walked(void *p, size_t size, unsigned flags, void *unused) {
    (void)size, (void)unused;
    bool is_known = false;
    for (unsigned i = 0; i < told->count; i++)
        is_known |= told->at[i] == p;
    walked += (flags & PMALLOC_PINNED) != 0;
    known += is_known;
    return 0;
}

static void begin(void) {
    settings();
    setenv("PMALLOC_TOPOLOGY", "3x1", 1);
    pm_node_move(0);
    pm_process_before_main();
}

// All pinned blocks that the last process told of are there, and no others.
static void look(void) {
    begin();
    walked = known = 0;
    CHECK_EQ(pmalloc_walk(count_walked, NULL), 0);
    CHECK_EQ(walked, told->count);
    CHECK_EQ(known, told->count);
    CHECK_EQ(pm_process_recovery()->live_objects, told->count);
    verify();
    die();
}

static void *pin_at(unsigned node) {
    here = node;
    pm_node_move(node);
    pmalloc_migrate();
    void *p = pmalloc_alloc(SIZE, 0, PMALLOC_PINNED);
    MUST(p && pm_node_of(p) == node);
    return p;
}

static void go_to(unsigned node) { pm_free(pin_at(node)); }

static void *block[4096];

static void pin_many(unsigned node, unsigned count) {
    go_to(node);
    for (unsigned i = 0; i < count; i++)
        block[i] = pin_at(node);
}

static void start_at(unsigned count) {
    begin();
    pin_many(0, count);
    go_to(1);
    void *first = pin_at(0);
    go_to(1);
    pm_free(first); // it sets the feature
    pm_remote_drain_all();
    count_anew();
}

static unsigned in_logs(void) {
    unsigned sum = 0;
    for (unsigned s = 0; s < pm_heap.shards; s++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++) {
            const struct pm_dealloc_log *m = &pm_log_head(&pm_heap.shard[s])->dealloc[log];
            unsigned now = pm_unseal(m->generation) % PM_DEALLOC_GENERATIONS;
            for (unsigned i = 0; i < PM_DEALLOC_ENTRIES; i++)
                sum += m->entry[i] &&
                       (m->entry[i] >> PM_DEALLOC_GENERATION_SHIFT) % PM_DEALLOC_GENERATIONS == now;
        }
    return sum;
}

// ---- a free, and a sync -------------------------------------------------------------------------

enum { MANY = 300 };

static void free_some(void) {
    start_at(MANY);
    for (unsigned i = 0; i < MANY; i++) {
        if (i % 3)
            pm_free(block[i]);
        else
            note(block[i]);
    }
    CHECK_EQ(flushed.local, 200);
    CHECK_EQ(flushed.remote, 0);
    CHECK_EQ(flushed.drains, 200);
    CHECK_EQ(in_logs(), 200);
    verify();
    die();
}

// What a killed process has told of is found by the next one.
static void killed_and_found(void (*work)(void)) {
    told->count = 0;
    CHECK_EQ(in_child(work), 128 + SIGKILL);
    CHECK_EQ(in_child(look), 128 + SIGKILL);
}

static void test_a_free_is_durable_and_local(void) {
    killed_and_found(free_some);
    CHECK_EQ(in_child(look), 128 + SIGKILL);
}

static void free_some_then_close(void) {
    start_at(MANY);
    for (unsigned i = 0; i < MANY; i++) {
        if (i % 3)
            pm_free(block[i]);
        else
            note(block[i]);
    }
    pm_process_end();
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_CLEAN);
}

static void test_a_clean_close(void) {
    told->count = 0;
    CHECK_EQ(in_child(free_some_then_close), 0);
    CHECK_EQ(in_child(look), 128 + SIGKILL);
}

// The owner takes them back before it grows. A block that is handed out again is alive, whatever an
// old entry says of it.
static void hand_out_again(void) {
    start_at(MANY);
    for (unsigned i = 0; i < MANY; i++)
        pm_free(block[i]);
    CHECK_EQ(in_logs(), MANY);
    uint64_t pages = pm_extent_stats().slab_pages;
    pm_node_move(0);
    pmalloc_migrate();
    here = 0;
    count_anew();
    while (in_logs())
        note(pin_at(0));
    CHECK(flushed.remote <= PM_DEALLOC_LOGS);
    printf("  %u blocks: the sync flushes %lu lines of the other node\n", MANY,
           (unsigned long)flushed.remote);
    fflush(stdout);
    for (unsigned i = 0; i < MANY; i++)
        note(pin_at(0));
    CHECK_EQ(pm_extent_stats().slab_pages, pages);
    unsigned again = 0;
    for (unsigned i = 0; i < told->count; i++)
        for (unsigned k = 0; k < MANY; k++)
            again += told->at[i] == block[k];
    CHECK(again > MANY / 2);
    verify();
    die();
}

static void test_handed_out_again(void) { killed_and_found(hand_out_again); }

// Where the owner asks for nothing, the thread that frees syncs a full log itself.
static void fill_logs(void) {
    const unsigned count = 4000, room = PM_DEALLOC_LOGS * PM_DEALLOC_ENTRIES;
    start_at(count);
    for (unsigned i = 0; i < count; i++) {
        pm_free(block[i]);
        CHECK(in_logs() == (i < room ? i + 1 : in_logs()));
    }
    CHECK(in_logs() <= room && in_logs() > room - PM_DEALLOC_ENTRIES);
    CHECK(flushed.remote * 6 < count);
    printf("  %u frees: %lu flushes of lines of the other node\n", count,
           (unsigned long)flushed.remote);
    fflush(stdout);
    for (unsigned i = 0; i < 3; i++)
        note(pin_at(0));
    verify();
    die();
}

static void test_logs_that_are_full(void) { killed_and_found(fill_logs); }

// The generations of an entry come again.
static void go_round(void) {
    start_at(0);
    void *p = NULL;
    for (unsigned i = 0; i < 2 * PM_DEALLOC_GENERATIONS + 3; i++) {
        p = pin_at(0);
        go_to(1);
        pm_free(p);
        if (i % 2)
            pm_free(pin_at(2));
        go_to(1);
        pm_remote_drain_all();
    }
    CHECK(flushed.rounds >= 2);
    note(pin_at(0));
    note(pin_at(0));
    go_to(1);
    pm_free(told->at[--told->count]);
    verify();
    die();
}

static void test_all_generations(void) { killed_and_found(go_round); }

static void three_nodes(void) {
    pm_options_default();
    pm_nodes = (struct pm_nodes){.count = 3, .cores_of = {1, 1, 1}, .injected = true};
}

// A heap that is only looked at is not changed: the frees are seen all the same.
static void only_look(void) {
    struct pm_error err = {0};
    struct pm_recovery r = {0};
    struct pm_recover_options options = {.write = false};
    three_nodes();
    fixture_tables();
    MUST(pm_heap_open(fixture_dir, PM_OPEN_READONLY, false, &err) == PM_OK);
    MUST(pm_tables_extend(&err) == PM_OK && pm_heap_map(&err) == PM_OK);
    unsigned before = in_logs();
    CHECK_EQ(pm_recover(&options, &r, &err), PM_OK);
    CHECK_STR(err.text, "");
    CHECK_EQ(r.live_objects, told->count);
    CHECK_EQ(in_logs(), before);
    CHECK_EQ(before, 200);
}

static void test_only_looked_at(void) {
    told->count = 0;
    CHECK_EQ(in_child(free_some), 128 + SIGKILL);
    CHECK_EQ(in_child(only_look), 0);
    CHECK_EQ(in_child(look), 128 + SIGKILL);
}

// ---- what a publish frees, and what was only reserved -------------------------------------------

static void publish_frees(void) {
    start_at(20);
    pmalloc_op op[20];
    for (unsigned i = 0; i < 20; i++)
        pmalloc_defer_free(&op[i], block[i]);
    CHECK_EQ(pmalloc_publish(op, 20), 0);
    CHECK_EQ(in_logs(), 0); // their bits were stores of the publish
    for (unsigned i = 0; i < 20; i++)
        CHECK_EQ(*pm_tag_at(block[i]), PM_TAG_NONE);
    CHECK(pmalloc_reserve(&op[0], SIZE, 0, PMALLOC_PINNED) && pm_node_of(op[0].at) == 1);
    pm_node_move(2);
    pmalloc_migrate();
    uint64_t drains = flushed.drains;
    pmalloc_cancel(op, 1);
    CHECK_EQ(flushed.drains, drains);
    CHECK_EQ(in_logs(), 0);
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK(s.remote_frees >= 21);
    verify();
    die();
}

static void test_a_publish_frees(void) { killed_and_found(publish_frees); }

// ---- misuse, damage -----------------------------------------------------------------------------

static void free_twice(void) {
    start_at(2);
    pm_free(block[0]);
    pm_free(block[0]);
}

static void test_misuse(void) { CHECK_EQ(in_child(free_twice), 128 + SIGABRT); }

static unsigned which;

static void damage(void) {
    const unsigned bit[] = {0, 7, 36, 40, 50, 63};
    struct pm_error err = {0};
    three_nodes();
    fixture_tables();
    MUST(pm_heap_open(fixture_dir, PM_OPEN_EXISTING, false, &err) == PM_OK);
    MUST(pm_tables_extend(&err) == PM_OK && pm_heap_map(&err) == PM_OK);
    for (unsigned s = 0; s < pm_heap.shards; s++)
        for (unsigned log = 0; log < PM_DEALLOC_LOGS; log++) {
            struct pm_dealloc_log *m = &pm_log_head(&pm_heap.shard[s])->dealloc[log];
            for (unsigned i = 0; i < PM_DEALLOC_ENTRIES; i++)
                if (m->entry[i] && which < 6) {
                    m->entry[i] ^= 1ull << bit[which];
                    return;
                }
            if (m->entry[7] && which == 6) {
                m->generation ^= 1;
                return;
            }
        }
    MUST(false);
}

static void refuse(void) { begin(); }

static void test_damage(void) {
    for (which = 0; which < 7; which++) {
        told->count = 0;
        CHECK_EQ(in_child(free_some), 128 + SIGKILL);
        CHECK_EQ(in_child(damage), 0);
        CHECK_EQ(in_child(refuse), 125);
        fixture_clear();
    }
}

// ---- threads ------------------------------------------------------------------------------------

enum { THREADS = 4, SLOTS = 64, ROUNDS = 6000 };
static _Atomic(uint64_t *) slot[SLOTS];

static void *roam(void *arg) {
    unsigned seed = *(unsigned *)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        if (i % 50 == 0) {
            pm_node_move((unsigned)rand_r(&seed) % 3);
            pmalloc_migrate();
        }
        size_t size = 16 + (unsigned)rand_r(&seed) % (rand_r(&seed) % 8 ? 200 : 20000);
        unsigned type = rand_r(&seed) % 4 ? 0 : PMALLOC_TYPE(3);
        uint64_t *p = pmalloc_alloc(size, 0, PMALLOC_PINNED | type);
        MUST(p);
        p[0] = p[1] = (uint64_t)(uintptr_t)p * 7;
        uint64_t *old = atomic_exchange(&slot[(unsigned)rand_r(&seed) % SLOTS], p);
        if (!old)
            continue;
        MUST(old[0] == old[1] && old[0] == (uint64_t)(uintptr_t)old * 7);
        old[0] = old[1] = 0;
        pm_free(old);
    }
    return NULL;
}

static void roam_all(void) {
    begin();
    pthread_t thread[THREADS];
    unsigned seed[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        seed[i] = i;
        MUST(pthread_create(&thread[i], NULL, roam, &seed[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (unsigned i = 0; i < SLOTS; i++)
        if (slot[i])
            note(slot[i]);
    verify();
    struct pm_stats s;
    pm_stats_get(&s); // drains the sets
    CHECK(s.remote_frees > 1000);
    CHECK_EQ(in_logs(), 0);
    verify();
    die();
}

static void test_threads(void) { killed_and_found(roam_all); }

// ---- other kinds --------------------------------------------------------------------------------

// Blocks of each kind, small and large, freed on another node, come back to their own.
static void all_kinds(void) {
    begin();
    static void *old[16][40];
    const size_t size[2] = {SIZE, 50000};
    for (unsigned node = 0; node < 3; node++) {
        pm_node_move(node);
        pmalloc_migrate();
        for (unsigned kind = 0; kind < 16; kind++)
            for (unsigned i = 0; i < 40; i++) {
                unsigned flags = (kind & 1 ? PMALLOC_POINTER_FREE : 0) |
                                 (kind & 2 ? PMALLOC_PINNED : 0) | (kind & 4 ? PMALLOC_TYPE(5) : 0);
                void *p = pmalloc_alloc(size[kind / 8], 0, flags);
                MUST(p);
                CHECK_EQ(pm_node_of(p), node);
                if (node)
                    pm_free(old[kind][i]);
                old[kind][i] = p;
            }
        verify();
    }
    for (unsigned kind = 0; kind < 16; kind++)
        for (unsigned i = 0; i < 40; i++)
            pm_free(old[kind][i]);
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.small_used_bytes + s.large_bytes, 0);
    CHECK_EQ(s.misplaced, 0);
    verify();
    die();
}

static void test_all_kinds(void) { killed_and_found(all_kinds); }

static void test_volatile(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    begin();
    pin_many(0, MANY);
    go_to(1);
    for (unsigned i = 0; i < MANY; i++)
        pm_free(block[i]);
    struct pm_stats s;
    pm_stats_get(&s);
    CHECK_EQ(s.small_used_bytes, 0);
    verify();
}

int main(void) {
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RUN_CHILD(a_free_is_durable_and_local);
    RUN_CHILD(a_clean_close);
    RUN_CHILD(handed_out_again);
    RUN_CHILD(logs_that_are_full);
    RUN_CHILD(all_generations);
    RUN_CHILD(only_looked_at);
    RUN_CHILD(a_publish_frees);
    RUN_CHILD(misuse);
    RUN_CHILD(damage);
    RUN_CHILD(threads);
    RUN_CHILD(all_kinds);
    RUN_CHILD(volatile);
    return CHECK_DONE();
}
