// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The scenarios that only fixed media have: they are made, given the heap of a directory, grown,
// and filled to their end; one, or two with one heap.
#include "medium.h"
#include "preload/pmalloc.h"
#include "process/entry.h"
#include "program.h"
#include "record.h"
#include "scenarios.h"

// A heap with objects is overwritten by an empty one: the old heap is there, none, or the new one.
void scenario_remade(unsigned phase) {
    if (phase == 1 || phase == 2) {
        world->expect.made = world->expect.closed = false;
        if (world->expect.slot[0][0]) // else it may be 0 already, or what was being set
            world->expect.slot[0][1] = 0;
        record_begin();
        medium_make_anew();
    }
    program_start("", false);
    struct table *t = program_table(0, 16);
    program_steps(t, 40, 12, 32, 30000);
    if (phase == 3)
        program_close();
}

// A heap in a directory, then the tool, interrupted, then a program on the copy.
void scenario_from(unsigned phase) {
    world->fixed = phase > 1;
    if (phase == 2 || phase == 3) {
        world->expect.made = false;
        record_begin();
        medium_copy();
        world->expect.made = true;
        return;
    }
    if (phase == 4)
        world->expect.file++; // the medium is another file
    program_start("", false);
    struct table *t = program_table(0, 24);
    program_steps(t, phase ? 20 : 80, 16, 32, 60000);
    if (phase)
        program_close();
}

// The medium becomes larger, step by step, and what is new is used.
void scenario_grown(unsigned phase) {
    if (phase == 1 || phase == 2) {
        record_begin();
        medium_need();
        world->expect.made = true;
        medium_grow(MEDIUM_BYTES + (16u << 20), world->seed % 2);
    }
    program_start("", false);
    struct table *t = program_table(0, 64);
    program_steps(t, 80, 60, 1 << 20, 2 << 20);
    program_steps(t, 60, 40, 32, 60000);
    if (phase == 3)
        program_close();
}

// Nothing is left of the medium, again and again.
void scenario_full(unsigned phase) {
    program_start("", false);
    struct table *t = program_table(0, 256);
    for (unsigned round = 0; round < 3; round++) {
        static const uint64_t size[] = {1 << 20, 100000, 9000, 600};
        for (unsigned i = 0; i < 4; i++)
            for (unsigned tries = 0; tries < 40; tries++)
                program_put(t, rnd(t->count), size[i] + rnd(size[i]));
        program_steps(t, 200, 40, 32, 100000);
        pm_trim();
    }
    program_drop_all(t);
    if (phase == 2)
        program_close();
}

// One heap on two media. It is made, first of all. Every table has a root slot of its own, and
// objects on both media. Small blocks, so slabs, and large ones come and go on either.
void scenario_pair(unsigned phase) {
    program_start("", false);
    if (pm_heap.shards != MEDIA)
        program_broken("a heap without its second medium");
    for (unsigned slot = 0; slot < 2; slot++) {
        struct table *t = program_table(slot, 24);
        program_steps(t, 30, 14, 32, 4000);
        program_steps(t, 30, 14, 16385, 90000);
        for (unsigned i = 0; i < 8; i++)
            program_resize(t, rnd(t->count), 40 + rnd(60000));
        program_steps(t, 20, 4, 32, 90000);
    }
    pm_trim();
    if (phase % 2)
        program_close();
}
