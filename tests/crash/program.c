// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blocks/slab.h"
#include "image.h"
#include "media/open/shard_make.h"
#include "medium.h"
#include "pages/extent_take.h"
#include "preload/pmalloc.h"
#include "process/before_main.h"
#include "process/entry.h"
#include "process/open.h"
#include "process/start.h"
#include "record.h"
#include "schedule.h"

struct captured crash_root_a __attribute__((aligned(4096)));
struct captured crash_root_b __attribute__((aligned(4096)));
uint64_t program_random;
void (*program_constructors)(void);
bool program_later;

// A number that no other object has in any process of the run.
static uint64_t next_id(void) {
    static uint64_t last;
    return ++last + world->points;
}

void program_broken(const char *what) {
    fprintf(stderr, "crash: the program found %s\n", what);
    _exit(4);
}

// Whether a realloc() that was cut short had already freed the object. The program could not store
// the new address yet.
static bool gone_in_limbo(const struct object *o) {
    bool limbo = false;
    for (unsigned i = 0; i < THREADS; i++)
        limbo |= world->expect.limbo[i] == (uintptr_t)o;
    if (!limbo || pm_vslabs[pm_slab_of(o)].size_class)
        return false;
    uint32_t index = *pm_page_extent(pm_heap_offset(o) >> PM_PAGE_SHIFT);
    const struct pm_extent *e = &pm_extents[index];
    return !index || e->state != PM_EXTENT_ACTIVE || pm_extent_address(e) != o;
}

static void count_links(struct object **at) {
    if (*at && gone_in_limbo(*at))
        *at = NULL;
    for (const struct object *o = *at; o; o = o->link) {
        if (object_wrong(o))
            program_broken(object_wrong(o));
        world->expect.allocated++;
    }
}

static void count_table(struct table *t) {
    if (!t)
        return;
    world->expect.allocated++;
    for (uint64_t i = 0; i < t->count; i++)
        count_links(&t->entry[i]);
}

static bool registered(const char *name) {
    const struct pm_root_table *t = &pm_heap.super->roots[pm_heap.super->state.root_epoch & 1];
    for (uint32_t i = 0; i < t->count; i++)
        if (strcmp(t->root[i].name, name) == 0)
            return true;
    return false;
}

// What the checker may expect of the captured roots. Until they are captured (`done`), those that
// PMALLOC_ROOTS names may be registered or not.
static void expect_captured(const char *roots, bool done) {
    static const char *const names[CAPTURED] = {"crash_root_a", "crash_root_b"};
    struct expect *e = &world->expect;
    for (unsigned i = 0; i < CAPTURED; i++) {
        bool has = registered(names[i]);
        e->may_have[i] = has || strncmp(names[i], roots, strlen(names[i])) == 0;
        e->may_lack[i] = !has;
        if (!has && !done)
            e->captured[i] = 0;
    }
}

// With `world->two` every heap has two shards from the first start on, and extents come from either
// by chance.
static void make_two_shards(void) {
    if (!world->two || world->fixed || pm_nodes.count > 1 || pm_heap.shards > 1 ||
        pm_shards_most() < 2)
        return;
    pm_lock(&pm_heap.shard[0].lock);
    if (!pm_shard_make(0))
        program_broken("no second shard");
    pm_unlock(&pm_heap.shard[0].lock);
}

static void favour_a_shard(void) {
    if (pm_heap.shards > 1)
        pm_extent_favour(rnd(2) % pm_heap.shards);
}

void program_start(const char *roots, bool collect_crash) {
    char path[HEAP_PATH];
    heap_path(path, "heap");
    setenv("PMALLOC_HEAP", path, 1);
    if (roots[0])
        setenv("PMALLOC_ROOTS", roots, 1);
    setenv("PMALLOC_MARKERS", "1", 1);
    if (world->two && !world->fixed && !getenv("PMALLOC_LIMIT"))
        setenv("PMALLOC_LIMIT", "2T", 1); // addresses for two
    world->expect.collect = program_later   ? COLLECT_LATER
                            : collect_crash ? COLLECT_CRASH
                                            : COLLECT_ALWAYS;
    setenv("PMALLOC_COLLECT", collect_text(world->expect.collect), 1);
    world->expect.closed = false;
    record_begin();
    if (world->fixed)
        medium_need();
    pm_process_start();
    world->expect.made = true;
    expect_captured(roots, false);
    if (program_constructors)
        program_constructors();
    pm_process_before_main();
    make_two_shards();
    expect_captured(roots, true);
    world->expect.allocated = 0;
    for (unsigned slot = 0; slot < PROGRAM_SLOTS; slot++) {
        uint64_t value = (uint64_t)(uintptr_t)pmalloc_get_root(slot);
        world->expect.slot[slot][0] = world->expect.slot[slot][1] = value;
        count_table(pmalloc_get_root(slot));
    }
    count_table(crash_root_a.table);
    count_table(crash_root_b.table);
    // Marking is conservative and may keep more objects. A clean close then finds these allocated,
    // too.
    if (world->expect.allocated < pm_process_recovery()->live_objects)
        world->expect.allocated = pm_process_recovery()->live_objects;
    memset(world->expect.limbo, 0, sizeof world->expect.limbo);
}

struct table *program_new_table(uint64_t count) {
    struct table *t = pm_malloc(sizeof *t + count * sizeof t->entry[0]);
    if (!t)
        program_broken("no memory for a table");
    t->magic = TABLE_MAGIC;
    t->count = count;
    for (uint64_t i = 0; i < count; i++)
        t->entry[i] = NULL;
    world->expect.allocated++;
    return t;
}

void program_free_table(struct table *t) {
    program_drop_all(t);
    world->expect.allocated--;
    pm_free(t);
}

void program_set_root(unsigned slot, struct table *t) {
    world->expect.slot[slot][1] = (uint64_t)(uintptr_t)t;
    if (pmalloc_set_root(slot, t) != 0)
        program_broken("no persistent heap");
    world->expect.slot[slot][0] = (uint64_t)(uintptr_t)t;
}

struct table *program_table(unsigned slot, uint64_t count) {
    struct table *t = pmalloc_get_root(slot);
    if (t)
        return t;
    t = program_new_table(count);
    program_set_root(slot, t);
    return t;
}

bool program_put(struct table *t, uint64_t at, uint64_t size) {
    size = size < OBJECT_MIN ? OBJECT_MIN : size;
    favour_a_shard();
    struct object *o = pm_malloc(size);
    if (!o)
        return false;
    object_fill(o, next_id(), size);
    o->link = t->entry[at];
    world->expect.allocated++;
    data_store_u64(&t->entry[at], (uint64_t)(uintptr_t)o);
    return true;
}

void program_drop(struct table *t, uint64_t at) {
    struct object *o = t->entry[at];
    data_store_u64(&t->entry[at], 0);
    while (o) {
        struct object *next = o->link;
        world->expect.allocated--;
        pm_free(o);
        o = next;
    }
}

void program_drop_all(struct table *t) {
    for (uint64_t at = 0; at < t->count; at++)
        if (t->entry[at])
            program_drop(t, at);
}

// The object's `size` falls before the call and rises after it, so that it never exceeds the block.
void program_resize(struct table *t, uint64_t at, uint64_t size) {
    struct object *o = t->entry[at];
    if (!o)
        return;
    struct object *link = o->link;
    size = size < OBJECT_MIN ? OBJECT_MIN : size;
    if (size < o->size) {
        object_fill(o, o->id, size);
        o->link = link;
        data_store_u64(&o->size, size);
    }
    uint64_t *limbo = &world->expect.limbo[schedule_self()];
    *limbo = (uint64_t)(uintptr_t)o;
    favour_a_shard();
    struct object *moved = pm_realloc(o, size);
    if (!moved) {
        *limbo = 0;
        return;
    }
    object_fill(moved, moved->id, size);
    moved->link = link;
    data_store_u64(&t->entry[at], (uint64_t)(uintptr_t)moved);
    *limbo = 0;
}

void program_step(struct table *t, uint64_t want, uint64_t from, uint64_t to) {
    uint64_t at = rnd(t->count);
    bool put = rnd(t->count) < want;
    if (!t->entry[at] && put)
        program_put(t, at, from + rnd(to - from));
    else if (t->entry[at] && put && rnd(8) == 0)
        program_put(t, at, from + rnd(to - from));
    else if (t->entry[at] && !put)
        program_drop(t, at);
    record_clock_ms += rnd(40);
}

void program_steps(struct table *t, unsigned count, uint64_t want, uint64_t from, uint64_t to) {
    while (count--)
        program_step(t, want, from, to);
}

void program_fill_to(struct table *t, uint64_t want, uint64_t size) {
    uint64_t used = 0;
    for (uint64_t i = 0; i < t->count; i++)
        used += t->entry[i] != NULL;
    for (uint64_t at; used != want; record_clock_ms += 3) {
        at = rnd(t->count);
        if (used < want && !t->entry[at]) {
            program_put(t, at, size + rnd(16));
            used++;
        } else if (t->entry[at] && (used > want || rnd(6) == 0)) {
            program_drop(t, at);
            used--;
        }
        if (rnd(12) == 0)
            pm_trim();
    }
}

void program_close(void) {
    pm_process_end();
    if (pm_heap.super->state.state != PM_STATE_CLEAN)
        program_broken("an unclean heap after its close");
    world->expect.closed = true;
    image_point(SITE_DATA, 0);
}
