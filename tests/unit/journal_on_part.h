// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Of test_journal_crash: the same files as parts of one fixed medium. Each part has its full room,
// and a word that says how much of that is in use. Commits do not flush these words, so one may be
// durable at any time before the next sync. A sync of one part is one of all, because they are one
// file. journal_part.c is what runs in between, as journal_files.c calls it.
#ifndef PMALLOC_TESTS_UNIT_JOURNAL_ON_PART_H
#define PMALLOC_TESTS_UNIT_JOURNAL_ON_PART_H

#include "journal_world.h"
#include "media/backing/fixed.h"
#include "media/backing/journal_part.h"

static struct pm_file *const parts[W_FILES] = {&pm_heap.journal, &pm_heap.super_file,
                                               &pm_heap.shard[0].data, &pm_heap.shard[0].slabs};
static const unsigned part_number[W_FILES] = {PM_JOURNAL_SELF, PM_JOURNAL_SUPER, PM_JOURNAL_DATA,
                                              PM_JOURNAL_SLABS};

// Whether the length that a part has now is noted as a version, as a store to the page cache.
static void p_note_lengths(void) {
    struct file *f = &world->file[W_LENGTHS];
    unsigned last = f->versions[0] - 1;
    if (memcmp(f->now, f->version[0][last].bytes, PM_PAGE_SIZE) != 0)
        note_version(f, 0);
    for (unsigned i = 0; i < W_FILES; i++)
        world->file[i].size = pm_fixed_length(parts[i]);
}

// The parts are those of this world: another one may have had the word since.
static void p_look(void) {
    struct pm_lengths *lengths = (void *)world->file[W_LENGTHS].now;
    pm_fixed.count = 1;
    pm_fixed.medium[0].lengths = lengths;
    for (unsigned i = 0; i < W_FILES; i++) {
        parts[i]->length = &lengths->pages[part_number[i]];
        parts[i]->room = most_pages[i] * (uint64_t)PM_PAGE_SIZE;
        parts[i]->at = 0;
        parts[i]->size = pm_fixed_length(parts[i]);
    }
}

static bool p_write(unsigned file, const void *from, size_t len, uint64_t at) {
    struct file *f = &world->file[world_file(file)];
    p_look();
    if (!operation())
        return false;
    p_look(); // an image may have been looked at
    bool skips = mutant == MUTANT_NO_END && ending && file == PM_JOURNAL_SELF;
    if (skips)
        return true;
    if (!pm_journal_part_store(pm_journal_part(file), file, len, &at))
        return false;
    p_note_lengths();
    if (!operation()) { // as write() may: a part has been written
        len = (len / 2) & ~(size_t)(SECTOR - 1);
        if (len)
            change(f, from, len, at);
        p_look();
        p_note_lengths();
        return false;
    }
    change(f, from, len, at);
    p_look();
    p_note_lengths();
    return true;
}

static bool p_read(unsigned file, void *to, size_t len, uint64_t at) {
    p_look();
    if (!pm_journal_part_load(pm_journal_part(file), len, &at))
        return false;
    memcpy(to, world->file[world_file(file)].now + at, len);
    return true;
}

static bool p_zero(unsigned file, uint64_t at, uint64_t len) {
    static const unsigned char zeroes[PM_PAGE_SIZE];
    bool good = true;
    if ((mutant == MUTANT_PART_KEEPS && file == PM_JOURNAL_SELF && at == 0) ||
        (mutant == MUTANT_PART_STALE && file != PM_JOURNAL_SELF))
        return true;
    for (; len && good; at += PM_PAGE_SIZE, len -= PM_PAGE_SIZE)
        good = p_write(file, zeroes, sizeof zeroes, at);
    return good;
}

static bool p_set_length(unsigned file, uint64_t bytes) {
    p_look();
    if (!operation())
        return false;
    p_look();
    bool good = pm_journal_part_set_length(pm_journal_part(file), file, bytes, p_zero);
    p_note_lengths();
    return good;
}

static bool p_sync(unsigned file) {
    if (!operation())
        return false;
    if (sync_left_out(file))
        return true;
    for (unsigned i = 0; i < W_ALL; i++)
        if (i != W_LENGTHS || mutant != MUTANT_PART_LENGTHS)
            make_durable(i);
    return true;
}

// The page of these bytes becomes durable, and no other one.
static void p_flush(unsigned file, uint64_t at) {
    struct file *f = &world->file[world_file(file)];
    memcpy(f->version[at / PM_PAGE_SIZE][0].bytes, f->now + (at & ~(PM_PAGE_SIZE - 1)),
           PM_PAGE_SIZE);
    f->versions[at / PM_PAGE_SIZE] = 1;
}

static const struct pm_journal_io p_io = {
    .write = p_write, .read = p_read, .zero = p_zero, .set_length = p_set_length, .sync = p_sync};

// A world whose parts have a page each, the superblock has two, and the journal none.
static void p_begin(void) {
    struct pm_lengths *lengths = (void *)world->file[W_LENGTHS].now;
    for (unsigned i = 0; i < W_FILES; i++)
        lengths->pages[part_number[i]] =
            pm_seal((i != W_JOURNAL) + (i == W_SUPER), PM_SALT_LENGTH(part_number[i]));
    p_look();
    p_note_lengths();
    make_durable(W_LENGTHS);
}

// What an image has of the parts: all their bytes, and as much as the words say.
static void p_image(struct world *w) {
    struct world *outer = world;
    world = w;
    p_look();
    for (unsigned i = 0; i < W_FILES; i++)
        w->file[i].size = w->file[i].durable_size = parts[i]->size;
    world = outer;
}

#endif
