// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The scenarios of roots: slots, and captured variables.
#include <stdio.h>
#include <unistd.h>

#include "preload/pmalloc.h"
#include "program.h"
#include "record.h"
#include "roots/root_table.h"
#include "scenarios.h"

void scenario_slots(unsigned phase) {
    program_start("", false);
    for (unsigned round = 0; round < 4; round++) {
        for (unsigned slot = 0; slot < PROGRAM_SLOTS; slot++) {
            struct table *old = pmalloc_get_root(slot);
            struct table *fresh = rnd(4) ? program_new_table(8) : NULL;
            if (fresh)
                program_steps(fresh, 12, 6, 32, 40000);
            program_set_root(slot, fresh);
            if (old)
                program_free_table(old);
        }
    }
    if (phase == 1) // leaves the heap without roots: it will be emptied
        for (unsigned slot = 0; slot < PROGRAM_SLOTS; slot++)
            program_set_root(slot, NULL);
    if (phase != 2)
        program_close();
}

static void fill_captured(struct captured *c) {
    if (!c->table) {
        struct table *t = program_new_table(8);
        data_store_u64(&c->table, (uint64_t)(uintptr_t)t);
    }
    program_steps(c->table, 20, 6, 32, 40000);
}

static void set_captured(unsigned which, struct captured *c) {
    uint64_t value = rnd(1u << 30);
    data_store_u64(&c->value, value);
    world->expect.captured[which] = value;
}

static void drop_captured(unsigned which, const char *name) {
    struct pm_error err;
    world->expect.may_lack[which] = true;
    if (pm_roots_drop(name, &err) != PM_OK)
        fprintf(stderr, "crash: %s\n", err.text), _exit(4);
    world->expect.may_have[which] = false;
}

// A captured root is registered, and then another one beside it. Both are removed, and the first
// one is registered again.
void scenario_capture(unsigned phase) {
    static const char *const roots[] = {"crash_root_a", "crash_root_b", "", "crash_root_a"};
    program_start(roots[phase % 4], false);
    if (world->expect.may_have[0]) {
        set_captured(0, &crash_root_a);
        fill_captured(&crash_root_a);
    }
    if (world->expect.may_have[1]) {
        set_captured(1, &crash_root_b);
        fill_captured(&crash_root_b);
    }
    if (phase == 2) {
        if (world->expect.may_have[1])
            drop_captured(1, "crash_root_b");
        if (world->expect.may_have[0])
            drop_captured(0, "crash_root_a");
        return;
    }
    program_close();
}

// A late root: main sets the variable up, and then the root is captured, and restored if the heap
// has it. What main has built is garbage after that.
void scenario_late(unsigned phase) {
    struct pm_error err;
    program_start("crash_root_a@call", false);
    bool known = !world->expect.may_lack[0];
    struct table *t = program_new_table(8);
    crash_root_a.table = t;
    crash_root_a.value = rnd(1u << 30);
    program_steps(t, 10, 6, 32, 40000);
    if (!known)
        world->expect.captured[0] = crash_root_a.value;
    if (pm_roots_capture_late(&err) != PM_OK)
        fprintf(stderr, "crash: %s\n", err.text), _exit(4);
    world->expect.may_lack[0] = false;
    if (crash_root_a.value != world->expect.captured[0] || (crash_root_a.table == t) == known)
        fprintf(stderr, "crash: a late root is not what it was\n"), _exit(4);
    if (known)
        program_free_table(t);
    set_captured(0, &crash_root_a);
    fill_captured(&crash_root_a);
    if (phase != 1)
        program_close();
}

// The last root is removed and set again. A heap may be emptied only once the removal is durable.
void scenario_unrooted(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 4);
    program_steps(t, 4, 3, 32, 40000);
    for (unsigned i = 0; i < 24; i++)
        program_set_root(0, i % 2 ? t : NULL);
    if (phase == 2)
        program_close();
}

// A heap without roots is empty after the next opening, closed or not.
void scenario_emptied(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 8);
    program_steps(t, 20, 6, 32, 40000);
    program_set_root(0, NULL);
    program_free_table(t);
    if (phase == 2)
        program_close();
}
