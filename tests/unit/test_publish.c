// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// pmalloc.h for data structures: what a publish does, what it refuses, and what the next process
// finds after a kill between any two of its steps.
#include "base/crc.h"
#include "media/log/lanes.h"
#include "session.h"

struct pair {
    uint64_t a, b;
    struct pair *next;
};

static void begin(void) {
    settings();
    pm_process_before_main();
}

// A heap with a block of many words in slot 0.
static uint64_t *words(void) {
    begin();
    uint64_t *w = pmalloc_get_root(0);
    if (w)
        return w;
    w = pm_calloc(200, sizeof *w);
    MUST(w && pmalloc_set_root(0, w) == 0);
    return w;
}

static struct pm_lane *lane_at(unsigned lane) {
    return (struct pm_lane *)(pm_heap.super + 1) + lane;
}

static bool has_lanes(void) { return (pm_heap.super->super.incompat & PM_INCOMPAT_LANES) != 0; }

// ---- what it does -------------------------------------------------------------------------------

static void publish_and_die(void) {
    begin();
    pmalloc_op op[5] = {0};
    struct pair *p = pmalloc_reserve(&op[0], sizeof *p, 0, PMALLOC_ZERO);
    struct pair *aligned = pmalloc_reserve(&op[1], sizeof *p, 4096, PMALLOC_ZERO);
    MUST(p && aligned && (uintptr_t)aligned % 4096 == 0);
    CHECK(p->a == 0 && p->next == NULL && aligned->b == 0);
    p->next = aligned;
    CHECK_EQ(pmalloc_store_root(&op[2], 7, p), 0);
    CHECK_EQ(pmalloc_store(&op[3], &p->a, 1), 0);
    CHECK(pmalloc_get_root(7) == NULL && p->a == 0); // nothing is stored before
    CHECK_EQ(pmalloc_publish(op, 5), 0);
    CHECK(pmalloc_get_root(7) == p && p->a == 1 && op[0].kind == 0 && op[3].kind == 0);
    CHECK_EQ(pmalloc_publish(op, 5), 0); // empty ones

    pmalloc_defer_free(&op[0], aligned);
    pmalloc_store(&op[1], &p->next, 0);
    CHECK(p->next == aligned && pm_usable_size(aligned) >= sizeof *p);
    CHECK_EQ(pmalloc_publish(op, 2), 0);
    CHECK(p->next == NULL && pm_memalign(4096, sizeof *p) == aligned);

    MUST(pmalloc_reserve(&op[0], 100, 0, 0)); // is forgotten
    MUST(pmalloc_reserve(&op[1], 100000, 0, PMALLOC_FLUSHED));
    pmalloc_store(&op[2], &p->a, 99);
    die();
}

static void look_after_it(void) {
    begin();
    struct pair *p = pmalloc_get_root(7);
    MUST(p != NULL);
    CHECK(p->a == 1 && p->next == NULL);
    CHECK_EQ(pm_process_recovery()->live_objects, 1);
    CHECK_EQ(pm_process_recovery()->unfinished, 0);
}

static void test_all_of_it(void) {
    CHECK_EQ(in_child(publish_and_die), 128 + SIGKILL);
    CHECK_EQ(in_child(look_after_it), 0);
}

// One store needs no lane. So the heap stays one that older builds open.
static void test_lanes_come_late(void) {
    uint64_t *w = words();
    pmalloc_op op[2];
    CHECK(!has_lanes() && pm_heap.super_file.size == sizeof(struct pm_super_file));
    pmalloc_store(&op[0], &w[3], 5);
    CHECK_EQ(pmalloc_publish(op, 1), 0);
    CHECK(w[3] == 5 && !has_lanes());
    struct stat st;
    CHECK(fstat(pm_heap.super_file.fd, &st) == 0 && st.st_size == sizeof(struct pm_super_file));
    pmalloc_store(&op[0], &w[3], 6);
    pmalloc_store(&op[1], &w[4], 7);
    CHECK_EQ(pmalloc_publish(op, 2), 0);
    CHECK(w[3] == 6 && w[4] == 7 && has_lanes());
    CHECK(fstat(pm_heap.super_file.fd, &st) == 0 &&
          st.st_size == sizeof(struct pm_super_file) + PM_LANES_BYTES &&
          st.st_blocks * 512 >= (off_t)PM_LANES_BYTES);
    struct pm_error err;
    CHECK_EQ(pm_superblock_check(&pm_heap.super->super, pm_heap.dir, &err), PM_OK);
}

static void test_cancel(void) {
    uint64_t *w = words();
    pmalloc_op op[3] = {0};
    void *p = pmalloc_reserve(&op[0], 100000, 0, 0);
    pmalloc_store(&op[1], w, 1);
    pmalloc_defer_free(&op[2], w);
    pmalloc_cancel(op, 3);
    CHECK(p && w[0] == 0 && op[0].kind == 0 && op[2].kind == 0);
    CHECK_EQ(pmalloc_publish(op, 3), 0);
    CHECK(pm_usable_size(w) >= 1600 && w[0] == 0 && pm_malloc(100000) == p);
}

static void test_in_one_call(void) {
    uint64_t *w = words();
    char **at = (char **)(void *)&w[10];
    char *p = pmalloc_malloc_to(at, 100);
    CHECK(p && *at == p);
    memset(p, 'x', 100);
    CHECK(pmalloc_realloc_at(at, 90) == p);
    char *moved = pmalloc_realloc_at(at, 5000);
    CHECK(moved && moved != p && *at == moved && moved[0] == 'x' && moved[99] == 'x');
    CHECK_EQ(pmalloc_free_from(at), 0);
    CHECK(*at == NULL);
    CHECK_EQ(pmalloc_free_from(at), 0);
    char *zeroes = pmalloc_calloc_to(at, 7, 11);
    CHECK(zeroes && *at == zeroes && zeroes[0] == 0 && zeroes[76] == 0);
    errno = 0;
    CHECK(!pmalloc_calloc_to(at, SIZE_MAX, 2) && errno == ENOMEM && *at == zeroes);
    CHECK(pmalloc_realloc_at(&w[11], 64) && w[11] != 0);
    pmalloc_persist(zeroes, 77);
    pmalloc_flush(&w, 8);               // not the heap's: nothing happens
    CHECK_EQ(pmalloc_needs_flush(), 0); // tmpfs
}

// ---- what is durable before what ----------------------------------------------------------------

// Each flush, and where the drains are.
static struct event {
    const void *at; // NULL: a drain
    size_t len;
} events[64];
static unsigned event_count;

static void note_flush(const void *at, size_t len) {
    MUST(event_count < 64 && at);
    events[event_count++] = (struct event){at, len};
}
static void note_drain(void) {
    MUST(event_count < 64);
    events[event_count++] = (struct event){NULL, 0};
}

// The number of drains before the flush of these bytes is drained; 0: they are not flushed.
static unsigned drained(const void *at, size_t len, unsigned from) {
    unsigned drains = 0;
    bool seen = false;
    for (unsigned i = 0; i < event_count; i++) {
        drains += events[i].at == NULL;
        const char *flushed = events[i].at;
        if (drains >= from && flushed && flushed <= (const char *)at &&
            flushed + events[i].len >= (const char *)at + len)
            seen = true;
        if (seen && !events[i].at)
            return drains;
    }
    return 0;
}

// tmpfs keeps nothing, so nothing would be flushed here. On DAX the recorder sees all.
static void test_order(void) {
    uint64_t *w = words();
    MUST(pm_lanes_make());
    for (size_t size = 64; size < 16384; size += 64) // so that no slab is made below
        pm_free(pm_malloc(size));
    pm_persist = (struct pm_persist_ops){note_flush, note_drain};
    pmalloc_op op[4];
    char *p = pmalloc_reserve(&op[0], 1000, 0, 0), *own = NULL;
    own = pmalloc_reserve(&op[1], 1000, 0, PMALLOC_FLUSHED);
    event_count = 0;
    pmalloc_store(&op[2], &w[20], (uint64_t)(uintptr_t)p);
    pmalloc_store(&op[3], &w[40], (uint64_t)(uintptr_t)own);
    CHECK_EQ(pmalloc_publish(op, 4), 0);
    unsigned lane = 0;
    while (lane < PM_LANES && !lane_at(lane)->crc)
        lane++;
    MUST(lane < PM_LANES);
    CHECK_EQ(drained(p, 1000, 0), 1);
    CHECK_EQ(drained(own, 1000, 0), 0);
    CHECK_EQ(drained(&lane_at(lane)->commit, 8, 0), 2); // with the stores before it in its line
    CHECK_EQ(drained(&w[20], 8, 0), 3);
    CHECK_EQ(drained(&w[40], 8, 0), 3);
    CHECK_EQ(drained(&lane_at(lane)->ended, 8, 0), 4);
    CHECK_EQ(event_count, 2 + 2 + 3 + 2); // and nothing else

    event_count = 0; // more stores than the word's line has room for
    pmalloc_op many[5];
    for (unsigned i = 0; i < 5; i++)
        pmalloc_store(&many[i], &w[i], i);
    CHECK_EQ(pmalloc_publish(many, 5), 0);
    const char *flushed = events[0].at;
    CHECK_EQ(events[0].len, 2 * sizeof(struct pm_lane_store));
    CHECK((uintptr_t)flushed % 64 == 0 && !events[1].at);
    CHECK(events[2].at == flushed - 64 && !events[3].at);

    event_count = 0; // one store: the block, and then the store
    p = pmalloc_calloc_to(&w[20], 1, 2000);
    CHECK(drained(p, 2000, 0) == 1 && drained(&w[20], 8, 0) == 2);
    CHECK_EQ(event_count, 4);
    event_count = 0;
    p[999] = 'x';
    char *moved = pmalloc_realloc_at(&w[20], 9000);
    CHECK(moved != p && drained(moved, 2000, 0) == 1 && drained(&w[20], 8, 0) == 2);
    event_count = 0;
    CHECK_EQ(pmalloc_free_from(&w[20]), 0);
    CHECK_EQ(drained(&w[20], 8, 0), 2); // an empty drain comes first
    event_count = 0;
    (void)!pmalloc_reserve(&op[0], 64, 0, 0);
    CHECK_EQ(pmalloc_publish(op, 1), 0);
    CHECK_EQ(event_count, 2);
}

// ---- what it refuses ----------------------------------------------------------------------------

static void test_refused(void) {
    uint64_t *w = words(), mine = 3;
    pmalloc_op op[PMALLOC_PUBLISH_STORES + 1];
    errno = 0;
    CHECK(!pmalloc_reserve(&op[0], 8, 24, 0) && errno == EINVAL && op[0].kind == 0);
    CHECK(!pmalloc_reserve(&op[0], 8, 0, 0x100) && errno == EINVAL);
    CHECK(!pmalloc_reserve(&op[0], SIZE_MAX / 2, 0, 0) && errno == ENOMEM);
    CHECK_EQ(pmalloc_store(&op[0], (char *)w + 4, 1), -1);
    CHECK_EQ(pmalloc_store(&op[0], NULL, 1), -1);
    CHECK_EQ(pmalloc_store_root(&op[0], PM_ROOT_SLOTS, w), -1);
    CHECK_EQ(pmalloc_store_root(&op[0], 0, (void *)(1ull << 50)), -1);
    CHECK_EQ(pmalloc_publish(op, 1), 0); // what was refused is empty

    pmalloc_store(&op[0], w, 1); // foreign addresses
    pmalloc_store(&op[1], &mine, 1);
    CHECK(pmalloc_publish(op, 2) == -1 && errno == EINVAL && w[0] == 0 && mine == 3);
    pmalloc_store(&op[1], pm_heap_at(pm_heap.shard[0].frontier), 1);
    CHECK(pmalloc_publish(op, 2) == -1 && errno == EINVAL && w[0] == 0);
    CHECK(!pmalloc_malloc_to(&mine, 8) && errno == EINVAL && mine == 3);

    op[1].kind = 77; // no element
    CHECK(pmalloc_publish(op, 2) == -1 && errno == EINVAL && w[0] == 0 && op[0].kind != 0);

    for (unsigned i = 0; i <= PMALLOC_PUBLISH_STORES; i++)
        pmalloc_store(&op[i], &w[i], i + 1);
    CHECK(pmalloc_publish(op, PMALLOC_PUBLISH_STORES + 1) == -1 && errno == EINVAL && w[0] == 0);
    CHECK_EQ(pmalloc_publish(op, PMALLOC_PUBLISH_STORES), 0);
    for (unsigned i = 0; i < PMALLOC_PUBLISH_STORES; i++)
        CHECK_EQ(w[i], i + 1);
    CHECK_EQ(w[PMALLOC_PUBLISH_STORES], 0);

    pm_locks_held++; // as in a signal handler that has interrupted malloc
    CHECK(pmalloc_publish(op, 1) == -1 && errno == EDEADLK);
    pm_locks_held--;
}

// A child has the elements of its parent, and publishes them to its own copy of the memory.
static void test_after_fork(void) {
    uint64_t *w = words();
    pmalloc_op op[3];
    uint64_t *p = pmalloc_reserve(&op[0], 500, 0, 0);
    pmalloc_store(&op[1], &w[0], 1);
    pmalloc_store(&op[2], &w[1], (uint64_t)(uintptr_t)p);
    pid_t pid = fork();
    if (pid == 0) {
        bool good = pmalloc_publish(op, 3) == 0 && w[0] == 1 && w[1] == (uint64_t)(uintptr_t)p;
        _exit(!good || pmalloc_is_persistent());
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(w[0] == 0 && w[1] == 0 && !has_lanes());
    CHECK(pmalloc_publish(op, 3) == 0 && w[0] == 1 && has_lanes());
}

static void test_volatile(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    pm_process_before_main();
    uint64_t mine[2] = {0};
    pmalloc_op op[2];
    pmalloc_store(&op[0], &mine[0], 1);
    pmalloc_store(&op[1], &mine[1], 2);
    CHECK(pmalloc_publish(op, 2) == 0 && mine[0] == 1 && mine[1] == 2);
    pmalloc_store_root(&op[0], 0, NULL);
    CHECK(pmalloc_publish(op, 1) == -1 && errno == ENOTSUP);
    CHECK(pmalloc_malloc_to(mine, 100) && mine[0] != 0);
    pmalloc_persist(mine, 16);
    CHECK_EQ(pmalloc_needs_flush(), 0);
}

// ---- all blocks ---------------------------------------------------------------------------------

static void *blocks[3000];
static unsigned block_count;

static int note_block(void *p, size_t size, unsigned flags, void *arg) {
    CHECK_EQ(flags, 0);
    CHECK_EQ(size, pm_usable_size(p));
    blocks[block_count++] = p;
    return block_count == *(unsigned *)arg;
}

static void check_all_blocks(unsigned want) {
    unsigned limit = 3000;
    block_count = 0;
    CHECK_EQ(pmalloc_walk(note_block, &limit), 0);
    CHECK_EQ(block_count, want);
}

static void fill_and_die(void) {
    uint64_t *w = words();
    for (unsigned i = 0; i < 200; i++)
        w[i] = (uint64_t)(uintptr_t)pm_malloc(16 + i * i * 3);
    check_all_blocks(201);
    for (unsigned i = 0; i < 200; i += 2) {
        pm_free((void *)(uintptr_t)w[i]); // into caches
        w[i] = 0;
    }
    check_all_blocks(101);
    die();
}

static int free_block(void *p, size_t size, unsigned flags, void *arg) {
    CHECK_EQ(flags, 0);
    *(uint64_t *)arg += size;
    pm_free(p);
    return 0;
}

static void walk_again(void) {
    uint64_t *w = words(), bytes = 0;
    check_all_blocks(101);
    unsigned limit = 50;
    block_count = 0;
    CHECK(pmalloc_walk(note_block, &limit) == 1 && block_count == 50);
    CHECK(w != NULL && pmalloc_set_root(0, NULL) == 0);
    CHECK(pmalloc_walk(free_block, &bytes) == 0 && bytes > 200 * 200 * 30);
    check_all_blocks(0);
}

static void test_walk(void) {
    CHECK_EQ(in_child(fill_and_die), 128 + SIGKILL);
    CHECK_EQ(in_child(walk_again), 0);
}

// ---- a publish that was cut short ---------------------------------------------------------------

static uint64_t heap_place(const void *p) {
    return pm_lane_where(PM_PLACE_HEAP, pm_heap_offset(p));
}

// Leaves a lane as a cut after its commit would.
static void commit_by_hand(struct pm_lane *l, unsigned lane, uint32_t count) {
    l->crc = pm_crc32c(count, l->store, count * sizeof l->store[0]);
    l->commit = pm_seal(PM_LANE_TURN + count, PM_SALT_LANE(lane));
}

static void leave_unfinished(void) {
    uint64_t *w = words();
    struct pair *p = pm_calloc(1, sizeof *p), *dropped = pm_calloc(1, sizeof *p);
    MUST(pm_lanes_make() && pmalloc_set_root(9, dropped) == 0);
    struct pm_lane *l = lane_at(31);
    w[1] = 10; // one of the stores has been made
    l->store[0] = (struct pm_lane_store){heap_place(&w[1]), 10};
    l->store[1] = (struct pm_lane_store){heap_place(&w[2]), (uint64_t)(uintptr_t)p};
    l->store[2] = (struct pm_lane_store){pm_lane_where(PM_PLACE_SLOT, 9 * 8), pm_slot_word(9, 0)};
    commit_by_hand(l, 31, 3);
    lane_at(2)->store[0] = (struct pm_lane_store){heap_place(&w[3]), 77}; // was not committed
    lane_at(2)->commit = lane_at(2)->ended = pm_seal(PM_LANE_TURN + 1, PM_SALT_LANE(2));
    die();
}

static void finished(void) {
    uint64_t *w = words();
    CHECK(w[1] == 10 && w[2] != 0 && w[3] == 0 && pmalloc_get_root(9) == NULL);
    CHECK_EQ(pm_process_recovery()->unfinished, 1);
    CHECK_EQ(pm_process_recovery()->live_objects, 2); // `dropped` is none
    CHECK_EQ(lane_at(31)->commit, pm_seal(PM_LANE_TURN + 3, PM_SALT_LANE(31)));
    CHECK_EQ(lane_at(31)->ended, lane_at(31)->commit);
    CHECK_EQ(pm_usable_size((void *)(uintptr_t)w[2]), 32);
}

static void test_finished_by_recovery(void) {
    CHECK_EQ(in_child(leave_unfinished), 128 + SIGKILL);
    CHECK_EQ(in_child(finished), 0);
}

static void (*damage)(struct pm_lane *l);

static void leave_damaged(void) {
    uint64_t *w = words();
    MUST(pm_lanes_make());
    struct pm_lane *l = lane_at(4);
    l->store[0] = (struct pm_lane_store){heap_place(&w[1]), 10};
    l->store[1] = (struct pm_lane_store){heap_place(&w[2]), 11};
    commit_by_hand(l, 4, 2);
    damage(l);
    die();
}

static void another_value(struct pm_lane *l) { l->store[1].value++; }
static void another_count(struct pm_lane *l) { l->commit ^= 1; }
static void zero_crc(struct pm_lane *l) { l->crc = 0; }
static void no_commit(struct pm_lane *l) {
    l->ended = l->commit;
    l->commit = 0;
}
static void no_end(struct pm_lane *l) { l->ended = 1; }
static void too_many(struct pm_lane *l) {
    l->commit = pm_seal(PM_LANE_TURN + PM_LANE_STORES + 1, PM_SALT_LANE(4));
}
static void no_stores(struct pm_lane *l) { l->commit = pm_seal(PM_LANE_TURN, PM_SALT_LANE(4)); }
static void another_lane(struct pm_lane *l) { commit_by_hand(l, 5, 2); }
static void beyond_the_end(struct pm_lane *l) {
    l->store[0].where = pm_lane_where(PM_PLACE_HEAP, pm_heap.shard[0].frontier);
    commit_by_hand(l, 4, 2);
}
static void another_shard(struct pm_lane *l) {
    l->store[0].where = pm_lane_where(PM_PLACE_HEAP, PM_PLACE_OFFSET & ~7ull);
    commit_by_hand(l, 4, 2);
}
static void no_image(struct pm_lane *l) {
    l->store[0].where = pm_lane_where(PM_PLACE_IMAGE, 0);
    commit_by_hand(l, 4, 2);
}
static void no_slot(struct pm_lane *l) {
    l->store[0].where = pm_lane_where(PM_PLACE_SLOT, sizeof(struct pm_slots));
    commit_by_hand(l, 4, 2);
}
static void no_slot_word(struct pm_lane *l) {
    l->store[0].where = pm_lane_where(PM_PLACE_SLOT, 0);
    commit_by_hand(l, 4, 2);
}
static void no_place(struct pm_lane *l) {
    l->store[0].where &= PM_PLACE_OFFSET;
    commit_by_hand(l, 4, 2);
}
static void half_a_word(struct pm_lane *l) {
    l->store[0].where += 4;
    commit_by_hand(l, 4, 2);
}
static void cut_off(struct pm_lane *l) {
    (void)l;
    MUST(ftruncate(pm_heap.super_file.fd, sizeof(struct pm_super_file) + 4096) == 0);
}

static void refuse_damage(void) {
    settings();
    pm_process_start(); // ends the process
}

// Nothing is changed: the state is read again by a process that only looks.
static void test_damage(void) {
    static void (*const all[])(struct pm_lane *) = {
        another_value, another_count, zero_crc,     another_lane, beyond_the_end, another_shard,
        no_image,      no_slot,       no_slot_word, no_place,     half_a_word,    cut_off,
        no_commit,     no_end,        too_many,     no_stores};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        damage = all[i];
        CHECK_EQ(in_child(leave_damaged), 128 + SIGKILL);
        CHECK_EQ(in_child(refuse_damage), 125);
        fixture_clear();
    }
}

int main(void) {
    RUN_CHILD(all_of_it);
    RUN_CHILD(lanes_come_late);
    RUN_CHILD(cancel);
    RUN_CHILD(in_one_call);
    RUN_CHILD(order);
    RUN_CHILD(refused);
    RUN_CHILD(after_fork);
    RUN_CHILD(volatile);
    RUN_CHILD(walk);
    RUN_CHILD(finished_by_recovery);
    RUN_CHILD(damage);
    return CHECK_DONE();
}
