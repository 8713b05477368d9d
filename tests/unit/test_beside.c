// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A collection beside a program that does nothing but hide pointers from it. Old objects lie in the
// cells of others. Between small steps of the collection the program takes a pointer out of a cell,
// so that the heap does not have it any more, keeps it in its hands, and puts it into another cell,
// old or new. It commits at any time. It frees objects, and gets new ones at their addresses. An
// offline recovery of a copy of the heap says what was garbage: the collection frees just that.
//
//   test_beside [--kills N]
#include "recovery/beside.h"

#include <stdlib.h>

#include "base/bits.h"
#include "blocks/alloc.h"
#include "blocks/extent_cache.h"
#include "blocks/verify.h"
#include "heap_fixture.h"
#include "media/backing/snapshot.h"
#include "media/commit/commit.h"
#include "media/open/origin.h"
#include "recovery/offline.h"
#include "recovery/recover.h"

#define OBJECTS 6000
#define CELLS 4
#define TABLE 512
#define HANDS 48
#define MAGIC 0x6a09e667f3bcc908ull

struct object {
    uint64_t check; // magic ^ size ^ the object's own address
    uint64_t size, owned;
    struct object *cell[CELLS];
};

// What the tests' processes tell each other.
static struct told {
    struct object *old[OBJECTS];
    bool alive[OBJECTS], freed[OBJECTS];
} * told;

static struct object **table;
static struct object *hand[HANDS];
static unsigned kills = 12;

// ---- objects ------------------------------------------------------------------------------------

static uint64_t check_of(const struct object *o) { return MAGIC ^ o->size ^ (uintptr_t)o; }

static void *allocate(size_t size) {
    bool zero = false;
    void *p = size > PM_SMALL_MAX ? pm_alloc_large(size, 16, &zero)
                                  : pm_alloc_small(pm_size_to_class(size));
    MUST(p);
    return memset(p, 0, size);
}

static struct object *new_object(void) {
    static const unsigned sizes[] = {64, 64, 80, 256, 700, 2048, 3000, 40000, 300000};
    size_t size = sizes[rnd(rnd(6) ? 7 : sizeof sizes / sizeof sizes[0])];
    struct object *o = allocate(size);
    *o = (struct object){.size = size};
    o->check = check_of(o);
    return o;
}

static bool is_whole(const struct object *o) {
    return o->check == check_of(o) && pm_find_tag(o) != PM_TAG_NONE;
}

// A cell that is reached from the table, by a walk of random length.
static struct object **some_cell(void) {
    struct object **cell = &table[rnd(TABLE)];
    for (unsigned n = (unsigned)rnd(6); n && *cell; n--) {
        CHECK(is_whole(*cell));
        cell = &(*cell)->cell[rnd(CELLS)];
    }
    return cell;
}

// ---- the heap at the start ----------------------------------------------------------------------

// A third of all is garbage, some of it in circles, some of it pointing to what is alive.
static void build(void) {
    pm_options_default();
    fixture_new_heap();
    table = allocate(TABLE * sizeof *table);
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)table);
    for (unsigned i = 0; i < OBJECTS; i++)
        told->old[i] = new_object();
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct object *o = told->old[i], **cell = some_cell();
        bool garbage = i % 3 == 0;
        if (!garbage && !*cell) {
            o->owned = 1;
            *cell = o;
        }
        if (garbage)
            o->cell[1] = told->old[rnd(OBJECTS)];
    }
    for (unsigned i = 0; i < TABLE; i++) { // what garbage points to as well must not be freed
        struct object **cell = some_cell();
        struct object *other = told->old[3 * rnd(OBJECTS / 3) + 1];
        if (!*cell && rnd(2)) {
            *cell = other;
            other->owned = 0;
        }
    }
    for (unsigned i = 0; i < OBJECTS; i += 3)
        if (told->old[i]->cell[1])
            told->old[i]->cell[1]->owned = 0;
    kill(getpid(), SIGKILL);
}

static void ask_oracle(void) {
    struct pm_recover_options how = {.write = true};
    struct pm_recovery found;
    struct pm_error err;
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    MUST(pm_recover(&how, &found, &err) == PM_OK);
    CHECK(found.marked);
    for (unsigned i = 0; i < OBJECTS; i++)
        told->alive[i] = pm_find_tag(told->old[i]) != PM_TAG_NONE;
}

// ---- the program --------------------------------------------------------------------------------

static void take(void) {
    struct object **cell = some_cell(), **free_hand = &hand[rnd(HANDS)];
    if (!*cell || *free_hand)
        return;
    *free_hand = *cell;
    *cell = NULL;
}

static void put(void) {
    struct object **cell = some_cell(), **full = &hand[rnd(HANDS)];
    if (*cell || !*full)
        return;
    CHECK(is_whole(*full));
    *cell = *full;
    *full = NULL;
}

// An owned object in a hand has no other pointer to it, and nor has what it owns.
static void drop(void) {
    struct object **full = &hand[rnd(HANDS)], *o = *full;
    if (!o || !o->owned)
        return;
    CHECK(is_whole(o));
    for (unsigned i = 0; i < OBJECTS; i++)
        told->freed[i] |= told->old[i] == o;
    memset(o, 0, sizeof *o);
    pm_alloc_free(o, pm_find_tag(o));
    *full = NULL;
}

static void make(void) {
    struct object **free_hand = &hand[rnd(HANDS)];
    if (*free_hand)
        return;
    *free_hand = new_object();
    (*free_hand)->owned = 1;
}

static void act(unsigned times, bool allocates) {
    while (times--)
        switch (rnd(8)) {
        case 0:
        case 1:
        case 2:
            take();
            break;
        case 3:
        case 4:
        case 5:
            put();
            break;
        case 6:
            if (allocates)
                make();
            break;
        case 7:
            drop();
            break;
        }
}

// Also of what has been freed: large objects become holes in the file.
static void commit(void) {
    struct pm_commit_cost cost;
    if (rnd(3) == 0)
        pm_extent_purge(true);
    MUST(pm_commit_prepare());
    pm_commit_take(true, &cost);
    MUST(pm_commit_finish());
}

static void start_beside(void) {
    struct pm_recover_options how = {.write = true, .beside = true};
    struct pm_recovery found;
    struct pm_error err;
    pm_options_default();
    pm_options.collect.number = PM_COLLECT_BACKGROUND;
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    MUST(pm_recover(&how, &found, &err) == PM_OK && found.uncollected);
    MUST(pm_heap_journal(&err) == PM_OK && pm_beside_begin(&err));
    CHECK(pm_beside_is_on() && pm_snapshot);
    table = (struct object **)(uintptr_t)pm_heap_slot(0);
}

// Small ones, so that it takes hundreds of them.
static bool step(bool acts) {
    bool sweeps = pm_beside_counters.stage == PM_BESIDE_SWEEP;
    struct pm_error err;
    if (acts)
        act((unsigned)rnd(40), !sweeps);
    if (acts && rnd(8) == 0)
        commit();
    CHECK(pm_beside_step(sweeps ? 8192 : 1 + rnd(16384), &err));
    return pm_beside_is_on();
}

// ---- what it frees ------------------------------------------------------------------------------

static void compare(void) {
    unsigned alive = 0, wrong[2] = {0, 0};
    for (unsigned i = 0; i < OBJECTS; i++) {
        bool in_use = pm_find_tag(told->old[i]) != PM_TAG_NONE;
        alive += told->alive[i];
        if (!told->freed[i]) // else there may be a new object
            wrong[told->alive[i]] += in_use != told->alive[i];
    }
    CHECK(alive > OBJECTS / 4 && alive < OBJECTS * 3 / 4);
    CHECK_EQ(wrong[0], 0); // garbage that is kept
    CHECK_EQ(wrong[1], 0); // freed, and alive
    CHECK_EQ(pm_beside_counters.stage, PM_BESIDE_DONE);
    CHECK(pm_beside_counters.blocks >= OBJECTS - alive && !pm_snapshot);
}

static void copy_heap(void) {
    char command[400];
    snprintf(command, sizeof command, "cp -a %s %s.copy", fixture_dir, fixture_dir);
    MUST(system(command) == 0);
}

static void use_copy(void) {
    strcat(fixture_dir, ".copy");
    pm_copies_taken = true;
    ask_oracle();
}

static void prepare(void) {
    MUST(in_child(build) == 128 + SIGKILL);
    copy_heap();
    MUST(in_child(use_copy) == 0);
}

static void test_nothing_changes(void) {
    struct pm_error err;
    prepare();
    start_beside();
    while (step(false)) {
    }
    compare();
    if (pm_verify(true, &err) != PM_OK)
        CHECK_STR(err.text, "");
}

static void hide_pointers(void) {
    struct pm_error err;
    start_beside();
    unsigned steps = 0;
    for (; step(true); steps++) {
    }
    CHECK(steps > 100);
    compare();
    for (unsigned i = 0; i < HANDS; i++)
        CHECK(!hand[i] || is_whole(hand[i]));
    if (pm_verify(true, &err) != PM_OK)
        CHECK_STR(err.text, "");
    act(20000, true);
}

static void test_pointers_are_hidden(void) {
    for (unsigned round = 0; round < 3; round++) {
        fixture_seed += round;
        prepare();
        CHECK_EQ(in_child(hide_pointers), 0);
        nftw(fixture_root, fixture_unlink, 16, FTW_DEPTH | FTW_PHYS);
        MUST(mkdir(fixture_root, 0700) == 0);
        memset(told, 0, sizeof *told);
    }
}

// ---- what became a hole -------------------------------------------------------------------------

static void build_large(void) {
    pm_options_default();
    fixture_new_heap();
    told->old[0] = allocate(1 << 20);
    told->old[1] = allocate(64);
    told->old[0]->cell[0] = told->old[1];
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)told->old[0]);
    kill(getpid(), SIGKILL);
}

// The file has no byte any more of the object that has led to the other one.
static void test_hole(void) {
    struct pm_written known = {0};
    MUST(in_child(build_large) == 128 + SIGKILL);
    start_beside();
    uint64_t at = pm_heap_offset(told->old[0]);
    pm_heap.super->slots.slot[0] = pm_slot_word(0, 0);
    pm_alloc_free(told->old[0], pm_find_tag(told->old[0]));
    pm_extent_cache_trim();
    pm_extent_purge(true);
    commit();
    CHECK_EQ(pm_heap_next_in_file(&known, &at, at + PM_PAGE_SIZE), 0);
    while (step(false)) {
    }
    CHECK(pm_find_tag(told->old[1]) != PM_TAG_NONE);
}

// ---- a full mark stack --------------------------------------------------------------------------

#define LEAVES 100000

static void ***wide;

// While one piece of the array is scanned, more is pushed than the stack holds.
static void build_wide(void) {
    pm_options_default();
    fixture_new_heap();
    wide = allocate(LEAVES * sizeof *wide);
    pm_heap.super->slots.slot[0] = pm_slot_word(0, (uint64_t)(uintptr_t)wide);
    for (unsigned i = 0; i < LEAVES; i++) {
        wide[i] = allocate(16);
        wide[i][0] = allocate(16);
    }
    kill(getpid(), SIGKILL);
}

static void test_overflow(void) {
    unsigned missing = 0;
    struct pm_error err;
    MUST(in_child(build_wide) == 128 + SIGKILL);
    start_beside();
    wide = (void ***)(uintptr_t)pm_heap_slot(0);
    do
        CHECK(pm_beside_step(1000, &err));
    while (pm_beside_is_on());
    for (unsigned i = 0; i < LEAVES; i++)
        missing += !pm_find_tag(wide[i]) + !pm_find_tag(wide[i][0]);
    CHECK_EQ(missing, 0);
}

// ---- kills --------------------------------------------------------------------------------------

static unsigned reached;

static void count_from(const struct object *o, unsigned depth) {
    for (unsigned i = 0; o && i < CELLS && depth < 64; i++) {
        if (!o->cell[i])
            continue;
        CHECK(is_whole(o->cell[i]));
        reached++;
        if (o->cell[i]->owned) // else it may be reached in many ways
            count_from(o->cell[i], depth + 1);
    }
}

static void check_graph(void) {
    reached = 0;
    for (unsigned i = 0; i < TABLE; i++)
        if (table[i]) {
            CHECK(is_whole(table[i]));
            reached++;
            count_from(table[i], 0);
        }
    CHECK(reached > TABLE / 2);
}

static unsigned until; // steps of the run that is to be killed

static void run_and_die(void) {
    start_beside();
    check_graph();
    commit();
    unsigned steps = 0;
    for (; steps < until && step(true); steps++) {
    }
    for (; steps < until; steps++) {
        act(20, true);
        if (rnd(8) == 0)
            commit();
    }
    kill(getpid(), check_failures ? SIGTERM : SIGKILL);
}

static void recover_all(void) {
    struct pm_recover_options how = {.write = true};
    struct pm_recovery found;
    struct pm_error err;
    pm_options_default();
    MUST(pm_offline_open(fixture_dir, PM_OPEN_EXISTING, &err) == PM_OK);
    MUST(pm_recover(&how, &found, &err) == PM_OK);
    table = (struct object **)(uintptr_t)pm_heap_slot(0);
    if (pm_verify(true, &err) != PM_OK)
        CHECK_STR(err.text, "");
    check_graph();
}

static void test_kills(void) {
    MUST(in_child(build) == 128 + SIGKILL);
    for (unsigned i = 0; i < kills; i++) {
        fixture_seed += i;
        until = (unsigned)rnd(rnd(3) ? 1200 : 40);
        CHECK_EQ(in_child(run_and_die), 128 + SIGKILL);
        if (i % 4 == 3)
            CHECK_EQ(in_child(recover_all), 0);
    }
    CHECK_EQ(in_child(recover_all), 0);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--kills") == 0)
        kills = (unsigned)strtoul(argv[2], NULL, 10);
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(told != MAP_FAILED);
    RUN_CHILD(nothing_changes);
    RUN_CHILD(pointers_are_hidden);
    RUN_CHILD(hole);
    RUN_CHILD(overflow);
    RUN_CHILD(kills);
    return CHECK_DONE();
}
