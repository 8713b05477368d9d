// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Disappearing links: added, moved, withdrawn, given other objects, cleared as by a collection in
// the living process; and, at the next start, cleared by recovery, because the program lets objects
// go without freeing them.
#include "links.h"
#include "program.h"
#include "record.h"
#include "scenarios.h"

static struct linked *of(uint32_t k) { return &world->expect.linked[k]; }

static struct pm_link link_of(uint32_t k, uint64_t object) {
    struct pm_link link = {.object = object - pm_base, .is_long = k % 3 == 0};
    struct pm_root_word word;
    if (k >= PUBLISHED) {
        link.at = pm_heap_offset(linked_word(k));
        return link;
    }
    if (!pm_root_word_of(linked_word(k), &word))
        program_broken("that a captured word is none");
    link.in_root = true;
    link.root = word.root;
    link.at = word.at;
    return link;
}

static void hold(uint32_t k, uint64_t value) {
    if (of(k)->object[0])
        program_broken("a link in the way");
    of(k)->value[1] = value;
    data_store_u64(linked_word(k), value);
    of(k)->value[0] = value;
}

static void settle(uint32_t k) {
    struct linked *l = of(k);
    l->object[0] = l->object[1];
    l->value[0] = l->value[1];
    l->clearing = false;
}

// ---- one change ---------------------------------------------------------------------------------

static uint32_t number[LINKED];

static void add(uint32_t k, uint64_t object) {
    struct pm_link link = link_of(k, object);
    hold(k, ~object);
    of(k)->object[1] = object;
    if (!pm_links_add(&link, &number[k]))
        program_broken("no room for a link");
    settle(k);
}

static void withdraw(uint32_t k) {
    of(k)->object[1] = 0;
    pm_links_erase(number[k]);
    pm_links_settle();
    settle(k);
}

// The word has the new object's address before the link is about it.
static void change(uint32_t k, uint64_t object) {
    of(k)->object[1] = object;
    of(k)->value[1] = ~object;
    data_store_u64(linked_word(k), ~object);
    of(k)->value[0] = ~object;
    pm_links_set_object(number[k], object - pm_base);
    settle(k);
}

static void move(uint32_t from, uint32_t to) {
    struct pm_link link = link_of(to, of(from)->object[0]);
    hold(to, of(from)->value[0]);
    if ((from < PUBLISHED) == (to < PUBLISHED)) {
        world->expect.moving[0] = from;
        world->expect.moving[1] = to;
    }
    of(to)->object[1] = of(from)->object[0];
    of(from)->object[1] = 0;
    number[to] = number[from];
    if (!pm_links_move(&number[to], &link))
        program_broken("no room for a link that moves");
    world->expect.moving[0] = world->expect.moving[1] = 0;
    settle(to);
    settle(from);
}

// As a collection does it that has found the object dead: that of bdwgc's interface, or that of
// pmalloc_collect().
static void clear(uint32_t k) {
    struct pm_link link = link_of(k, of(k)->object[0]);
    of(k)->clearing = true;
    if (!link.in_root || rnd(2))
        pm_links_clear_word(linked_word(k));
    else if (!pm_root_word_store((struct pm_root_word){link.root, link.at}, 0))
        program_broken("that a captured word cannot be stored to");
    pm_links_settle();
    of(k)->value[0] = of(k)->value[1] = 0;
    withdraw(k);
}

// ---- the program --------------------------------------------------------------------------------

static struct table *begin(void) {
    program_start("crash_root_a", false);
    if (!crash_root_a.table) {
        struct table *t = program_new_table(LINK_OBJECTS + LINKED - PUBLISHED);
        t->count = LINK_OBJECTS;
        data_store_u64(&crash_root_a.table, (uint64_t)(uintptr_t)t);
    }
    struct links_there there = links_there();
    if (there.others || there.twice)
        program_broken("links that it does not know");
    for (uint32_t k = 0; k < LINKED; k++) {
        of(k)->object[1] = there.object[k];
        of(k)->value[1] = *linked_word(k);
        number[k] = there.number[k];
        settle(k);
    }
    world->expect.moving[0] = world->expect.moving[1] = 0;
    return crash_root_a.table;
}

static bool is_held(const struct table *t, uint64_t object) {
    for (uint64_t at = 0; at < t->count; at++)
        for (const struct object *o = t->entry[at]; o; o = o->link)
            if ((uintptr_t)o == object)
                return true;
    return false;
}

// An object that lives.
static uint64_t some_object(struct table *t) {
    uint64_t at = rnd(t->count);
    if (!t->entry[at])
        program_put(t, at, 32 + rnd(rnd(4) ? 300 : 20000));
    return (uintptr_t)t->entry[at];
}

// What links may be about is not freed: it is let go.
static void let_go(struct table *t) { data_store_u64(&t->entry[rnd(t->count)], 0); }

static void step(struct table *t) {
    uint32_t k = (uint32_t)rnd(LINKED), other = (uint32_t)rnd(LINKED);
    if (!of(k)->object[0])
        add(k, some_object(t));
    else if (!is_held(t, of(k)->object[0]) && rnd(2))
        clear(k);
    else if (!of(other)->object[0] && rnd(2))
        move(k, other);
    else if (rnd(3) == 0)
        withdraw(k);
    else
        change(k, some_object(t));
    if (rnd(4) == 0)
        let_go(t);
}

// So many links that one table does not hold them.
static void fill(struct table *t) {
    for (uint32_t k = 0; k < LINKED; k++)
        if (!of(k)->object[0] && rnd(8))
            add(k, some_object(t));
}

void scenario_links(unsigned phase) {
    struct table *t = begin();
    for (unsigned i = 0; i < 60; i++)
        step(t);
    if (phase % 2 == 0)
        fill(t);
    for (unsigned i = 0; i < 40; i++)
        step(t);
    if (phase == 3)
        program_close();
}
