// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The scenarios of publish: 1 to 16 stores to words of a captured variable, to a table in the heap
// and to a root slot, with blocks that become reachable and others that are freed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/nodes.h"
#include "preload/pmalloc.h"
#include "process/entry.h"
#include "program.h"
#include "record.h"
#include "scenarios.h"
#include "schedule.h"

#define ENTRIES 8u

// The words that are published: of the captured variable; or, in a heap that has only slots, after
// the entries of the table in slot 3. Stores to the heap are durable at once here. So in such a
// heap a lane that was not ended in time would undo later stores.
static uint64_t *words;

static void broken(const char *what) {
    fprintf(stderr, "crash: the program found %s\n", what);
    _exit(4);
}

// What one publish is made of.
struct draft {
    pmalloc_op op[PUBLISHED + 4];
    size_t n;
    struct publish expect;
    int64_t allocated; // objects more
};

static struct published *expect(struct publish *p, uint32_t word, uint64_t *at, uint64_t fresh) {
    struct published *s = &p->store[p->count++];
    if (!at && word < PUBLISHED && words != crash_root_a.word)
        at = &words[word];
    *s = (struct published){.word = word, .at = at, .fresh = fresh};
    s->old = published_value(s);
    return s;
}

static void add(struct draft *d, uint32_t word, uint64_t *at, uint64_t fresh) {
    expect(&d->expect, word, at, fresh);
    if (pmalloc_store(&d->op[d->n++], at ? at : &words[word], fresh) != 0)
        broken("that a store was refused");
}

// Another object takes the place of the first one of an entry.
static void replace(struct draft *d, struct table *t) {
    struct object **at = &t->entry[rnd(t->count)], *old = *at;
    uint64_t size = OBJECT_MIN + rnd(rnd(8) ? 600 : 40000);
    // An object with a link has a pointer.
    unsigned flags = (rnd(2) ? PMALLOC_ZERO : 0) | (rnd(2) ? PMALLOC_PINNED : 0) |
                     (!(old && old->link) && rnd(3) == 0 ? PMALLOC_POINTER_FREE : 0) |
                     PMALLOC_TYPE(object_type(size));
    struct object *o = pmalloc_reserve(&d->op[d->n++], size, 0, flags);
    if (!o)
        broken("no memory for an object");
    object_fill(o, world->points << 8 | d->n, size);
    o->link = old ? old->link : NULL;
    add(d, 0, (uint64_t *)(void *)at, (uint64_t)(uintptr_t)o);
    pmalloc_defer_free(&d->op[d->n++], old);
    d->allocated += old ? 0 : 1;
}

// The same without a publish: a pinned object that is allocated durably on return, and an old one
// that is freed durably on return. The program's stores are durable at once. Between the calls one
// object is allocated that no entry has: a failure leaves it so, until free_loose().
static void replace_pinned(struct table *t) {
    struct object **at = &t->entry[rnd(t->count)], *old = *at;
    // Large ones are of a few lengths, so that some get extents that stand.
    uint64_t size = OBJECT_MIN + (rnd(8) ? rnd(600) : 30000 * (1 + rnd(3)));
    world->expect.publish[schedule_self()] = (struct publish){.count = 0};
    world->expect.loose++;
    struct object *o = pmalloc_alloc(size, 0, PMALLOC_PINNED | PMALLOC_TYPE(object_type(size)));
    if (!o)
        broken("no memory for an object");
    object_fill(o, world->points << 8, size);
    o->link = old ? old->link : NULL;
    data_store_u64(at, (uint64_t)(uintptr_t)o);
    world->expect.allocated += !old;
    pm_free(old);
    world->expect.loose--;
}

static bool has(const struct table *t, const void *p) {
    for (uint64_t i = 0; t && i < t->count; i++)
        for (const struct object *o = t->entry[i]; o; o = o->link)
            if (o == p)
                return true;
    return false;
}

static int free_if_loose(void *p, size_t size, unsigned flags, void *unused) {
    (void)size, (void)unused;
    bool known = has(crash_root_a.table, p);
    for (unsigned slot = 0; slot < PROGRAM_SLOTS; slot++)
        known |= has(pmalloc_get_root(slot), p);
    if (flags & PMALLOC_PINNED && !known)
        pm_free(p);
    return 0;
}

// Frees the object of a replace_pinned() that was cut short, as a program does that allocates
// pinned blocks without a publish.
static void free_loose(void) {
    if (world->expect.loose)
        pmalloc_walk(free_if_loose, NULL);
    world->expect.loose = 0;
}

// Blocks are freed, and nothing is stored.
static void publish_frees(void) {
    pmalloc_op op[2];
    if (!pmalloc_reserve(&op[0], 32 + rnd(600), 64, rnd(2) ? PMALLOC_PINNED : 0))
        broken("no memory for a block");
    pmalloc_defer_free(&op[1], op[0].at);
    if (pmalloc_publish(op, 2) != 0)
        broken("that a publish failed");
}

static void publish(struct draft *d) {
    struct publish *now = &world->expect.publish[schedule_self()];
    d->expect.during = true;
    *now = d->expect;
    if (rnd(16) == 0) {
        pmalloc_cancel(d->op, d->n);
        for (uint32_t i = 0; i < now->count; i++)
            now->store[i].fresh = now->store[i].old;
    } else if (pmalloc_publish(d->op, d->n) != 0) {
        broken("that a publish failed");
    } else {
        world->expect.allocated += (uint64_t)d->allocated;
    }
    now->during = false;
}

// The program flushes a word, and a publish drains: what it stores is durable after that word.
static void step_after_flush(void) {
    struct draft d = {.n = 0, .expect = {.early = 1}};
    struct publish *now = &world->expect.publish[schedule_self()];
    uint32_t at = (uint32_t)rnd(PUBLISHED), more = (uint32_t)rnd(3);
    expect(&d.expect, at, NULL, world->points << 8);
    for (uint32_t i = 1; i <= more; i++)
        add(&d, (at + i) % PUBLISHED, NULL, world->points << 8 | i);
    d.expect.during = true;
    *now = d.expect;
    data_store_weak(&words[at], d.expect.store[0].fresh);
    pmalloc_flush(&words[at], sizeof(uint64_t));
    if (d.n == 0 && rnd(2))
        pmalloc_drain();
    else if (pmalloc_publish(d.op, d.n) != 0)
        broken("that a publish failed");
    now->during = false;
}

// A store of the program's own, which no old publish may undo.
static void store_more(struct publish *now, uint32_t word) {
    uint64_t value = world->points;
    data_store_u64(&words[word], value);
    expect(now, word, NULL, value)->old = value;
}

static void store_alone(uint32_t word) {
    struct publish *now = &world->expect.publish[schedule_self()];
    *now = (struct publish){.count = 0};
    store_more(now, word);
}

// The words from `first` on, and the table, are this thread's own.
static void step(struct table *t, uint32_t first, uint32_t count) {
    struct draft d = {.n = 0};
    uint32_t want = 1 + (uint32_t)rnd(count), at = first + (uint32_t)rnd(count);
    bool before = rnd(2), object = rnd(2) && want < PUBLISHED;
    if (object && before)
        replace(&d, t);
    for (uint32_t i = 0; i < want; i++)
        add(&d, first + (at - first + i) % count, NULL, world->points << 8 | i);
    if (object && !before)
        replace(&d, t);
    publish(&d);
    if (rnd(4) == 0)
        store_alone(at);
}

// The next process finds all of what its predecessor published, or none of it.
static void settle(void) {
    for (unsigned thread = 0; thread < THREADS; thread++) {
        struct publish *p = &world->expect.publish[thread];
        for (uint32_t i = 0; i < p->count; i++)
            p->store[i].old = p->store[i].fresh = published_value(&p->store[i]);
        p->during = false;
    }
}

// Finds the words of a heap that has only slots. False: it has none yet.
static bool find_words(void) {
    struct table *t = pmalloc_get_root(3);
    if (!t)
        return false;
    settle();
    words = (uint64_t *)(void *)&t->entry[ENTRIES];
    return true;
}

// A constructor stores to a word before anything drains.
static void store_early(void) {
    if (find_words())
        store_alone((uint32_t)rnd(PUBLISHED));
}

// Without a constructor the variable is captured.
static struct table *start(void (*constructor)(void)) {
    bool captured = !constructor;
    program_constructors = constructor;
    program_start(captured ? "crash_root_a" : "", false);
    struct table *t = captured ? crash_root_a.table : pmalloc_get_root(3);
    settle();
    if (!t) {
        t = program_new_table(ENTRIES + PUBLISHED);
        t->count = ENTRIES;
        if (captured)
            data_store_u64(&crash_root_a.table, (uint64_t)(uintptr_t)t);
        else
            program_set_root(3, t);
    }
    words = captured ? crash_root_a.word : (uint64_t *)(void *)&t->entry[ENTRIES];
    free_loose();
    return t;
}

// A root slot gets a new table, and a word says so.
static void replace_slot(void) {
    struct draft d = {.n = 0};
    struct table *old = pmalloc_get_root(0);
    struct table *fresh = pmalloc_reserve(&d.op[d.n++], sizeof *fresh + sizeof fresh->entry[0], 0,
                                          PMALLOC_FLUSHED | PMALLOC_ZERO);
    if (!fresh)
        broken("no memory for a table");
    fresh->magic = TABLE_MAGIC;
    fresh->count = 1;
    expect(&d.expect, PUBLISHED, NULL, (uint64_t)(uintptr_t)fresh);
    if (pmalloc_store_root(&d.op[d.n++], 0, fresh) != 0)
        broken("that a slot was refused");
    add(&d, 0, NULL, world->points);
    if (old && old->entry[0])
        broken("an entry that nobody made");
    pmalloc_defer_free(&d.op[d.n++], old);
    world->expect.slot[0][1] = (uint64_t)(uintptr_t)fresh;
    world->expect.allocated += !old;
    world->expect.publish[schedule_self()] = d.expect;
    world->expect.publish[schedule_self()].during = true;
    if (pmalloc_publish(d.op, d.n) != 0)
        broken("that a publish failed");
    world->expect.publish[schedule_self()].during = false;
    world->expect.slot[0][0] = world->expect.slot[0][1];
}

// Every other seed without captured variables, and every fourth with slots alone.
void scenario_publish(unsigned phase) {
    struct table *t = start(world->seed % 2 ? NULL : store_early);
    for (unsigned i = 0; i < 24; i++) {
        if (world->seed % 4 == 2 || i % 4 == 3)
            replace_slot();
        if (world->seed % 4 == 2)
            continue;
        step(t, 0, PUBLISHED);
        step_after_flush();
        if (i % 3 == 0)
            replace_pinned(t);
    }
    publish_frees();
    if (phase % 2)
        program_close();
}

// From now on other threads store to the words of these.
static void forget_publishes(void) {
    memset(world->expect.publish, 0, sizeof world->expect.publish);
}

// ---- frees on another node ----------------------------------------------------------------------

static void go_to_a_node(void) {
    pm_node_move((unsigned)rnd(2));
    pmalloc_migrate();
}

// Pinned objects that are freed on either node, and whose blocks come back and are used again.
static void replace_far(struct table *t, unsigned times) {
    for (unsigned i = 0; i < times; i++) {
        if (rnd(2))
            go_to_a_node();
        replace_pinned(t);
        if (rnd(3) == 0)
            pm_trim();
    }
}

static void two_nodes(void) {
    setenv("PMALLOC_TOPOLOGY", "2x1", 1);
    setenv("PMALLOC_LIMIT", "2T", 1); // addresses for two
}

void scenario_far(unsigned phase) {
    two_nodes();
    struct table *t = start(NULL);
    replace_far(t, 60);
    if (phase % 2)
        program_close();
}

static void far_worker(void *arg) { replace_far(arg, 20); }

// What one thread syncs another one is given.
void scenario_far_threads(unsigned phase) {
    (void)phase;
    two_nodes();
    start(NULL);
    struct table *t[2];
    forget_publishes();
    for (unsigned slot = 0; slot < 2; slot++)
        t[slot] = program_table(slot, ENTRIES);
    schedule_start(far_worker, t[0]);
    schedule_start(far_worker, t[1]);
    schedule_join();
    program_close();
}

// ---- publishes by threads -----------------------------------------------------------------------

static void worker(void *arg) {
    for (unsigned i = 0; i < 8; i++)
        step(arg, schedule_self() == 1 ? 0 : PUBLISHED / 2, PUBLISHED / 2);
}

static void heir(void *unused) {
    (void)unused;
    for (uint32_t word = 0; word < PUBLISHED; word++)
        store_more(&world->expect.publish[schedule_self()], word);
    pmalloc_drain();
}

static void send_heir(void) {
    if (!find_words())
        return;
    forget_publishes();
    schedule_start(heir, NULL);
    schedule_join();
}

// A process is killed within a publish. The next one finishes that, and then a thread that a
// constructor starts stores to all the words. What this thread drains is what it has flushed
// itself. So only the start's drain keeps the old publish from being made a second time, over the
// new stores.
void scenario_heir(unsigned phase) {
    (void)phase;
    struct table *t = start(send_heir);
    forget_publishes();
    for (unsigned i = 0; i < 5; i++)
        step(t, 0, PUBLISHED);
}

void scenario_publishers(unsigned phase) {
    (void)phase;
    start(NULL);
    struct table *t[2];
    forget_publishes();
    for (unsigned slot = 0; slot < 2; slot++)
        t[slot] = program_table(slot, ENTRIES);
    schedule_start(worker, t[0]);
    schedule_start(worker, t[1]);
    schedule_join();
    program_close();
}
