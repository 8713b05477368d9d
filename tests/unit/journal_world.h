// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Files under power failure, for the journal. Each file has what is durable and what is cached.
// Since the last sync of a file its pages have versions; an image may hold any version of each
// sector of 512 bytes: a prefix, a suffix or any mixture. A new length may be durable or not.
#ifndef PMALLOC_TESTS_UNIT_JOURNAL_WORLD_H
#define PMALLOC_TESTS_UNIT_JOURNAL_WORLD_H

#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "media/journal/journal.h"

#define SECTOR 512u
#define SECTORS (PM_PAGE_SIZE / SECTOR)
#define FILE_PAGES 56u
#define VERSIONS 4u

// The journal, and three files of a heap.
// On a fixed medium also the page of their lengths (journal_on_part.h).
enum { W_JOURNAL, W_SUPER, W_DATA, W_SLABS, W_FILES, W_LENGTHS = W_FILES, W_ALL };
static const unsigned most_pages[W_ALL] = {FILE_PAGES, 6, 6, 6, 1};

struct version {
    unsigned char bytes[PM_PAGE_SIZE];
};
struct file {
    uint64_t size, durable_size;
    unsigned char now[FILE_PAGES * PM_PAGE_SIZE];
    // versions[0] is durable; the others came after it
    struct version version[FILE_PAGES][VERSIONS];
    unsigned versions[FILE_PAGES];
    unsigned used; // no page from here on has ever been written: it is zero, and has one version
};
struct world {
    struct file file[W_ALL];
};

static struct world *world;
static uint64_t seed = 1;
static void (*at_operation)(void); // before each operation on a file
static bool on_part;               // the files are parts of a fixed medium
static int fail_in = -1;           // the operation after so many fails, as on a full disk

// What a mutant leaves out.
enum mutant {
    MUTANT_NONE,
    MUTANT_NO_SYNC,        // of the journal, before it is applied
    MUTANT_EARLY,          // applies before that sync
    MUTANT_NO_SUPER_SYNC,  // of a file, after a commit was applied to it
    MUTANT_NO_DATA_SYNC,   // the same
    MUTANT_NO_SLABS_SYNC,  // the same
    MUTANT_NO_RETIRE,      // the journal is not emptied before files change in another way
    MUTANT_NO_RETIRE_SYNC, // it is, but that is not durable
    MUTANT_NO_KILL_SYNC,   // of a journal that a killed process has left
    MUTANT_NO_CHECKPOINT,  // a lap ends, and no file is synced
    MUTANT_NO_END,         // the header of a lap that ends is left as it is
    MUTANT_NO_END_SYNC,    // it is zeroed, but that is not durable
    MUTANT_PART_KEEPS,     // on a medium: the first page of an emptied journal
    MUTANT_PART_STALE,     // what lies beyond the new end of another part
    MUTANT_PART_LENGTHS,   // a sync of the lengths, ever
    MUTANT_PART_NO_SYNC,   // of any part but the journal
    MUTANT_SKIPS,          // see journal_wrong.h
    MUTANT_ORDER,
    MUTANT_NO_CHAIN,
    MUTANT_NO_CRC,
    MUTANTS
};
static bool retiring, inheriting; // the journal's next sync is one of those
static bool ending;               // a lap ends: the same
static enum mutant mutant;

static uint64_t rnd(uint64_t below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed % below;
}

static unsigned world_file(unsigned file) {
    switch (file) {
    case PM_JOURNAL_SELF:
        return W_JOURNAL;
    case PM_JOURNAL_SUPER:
        return W_SUPER;
    case PM_JOURNAL_DATA:
        return W_DATA;
    }
    return W_SLABS;
}

static bool operation(void) {
    if (at_operation)
        at_operation();
    if (fail_in >= 0 && fail_in-- == 0) {
        errno = ENOSPC;
        return false;
    }
    return true;
}

// A page has changed in the cache. If there are too many versions, an early one is forgotten.
static void note_version(struct file *f, uint64_t page) {
    unsigned *count = &f->versions[page];
    if (*count == VERSIONS) {
        memmove(&f->version[page][1], &f->version[page][2],
                (VERSIONS - 2) * sizeof(struct version));
        --*count;
    }
    memcpy(f->version[page][(*count)++].bytes, f->now + page * PM_PAGE_SIZE, PM_PAGE_SIZE);
    if (f->used <= page)
        f->used = (unsigned)page + 1;
}

static void change(struct file *f, const void *from, size_t len, uint64_t at) {
    if (from)
        memcpy(f->now + at, from, len);
    else
        memset(f->now + at, 0, len);
    for (uint64_t page = at / PM_PAGE_SIZE; page <= (at + len - 1) / PM_PAGE_SIZE; page++)
        note_version(f, page);
    if (from && f->size < at + len)
        f->size = at + len;
}

static bool w_write(unsigned file, const void *from, size_t len, uint64_t at) {
    struct file *f = &world->file[world_file(file)];
    if (at + len > most_pages[world_file(file)] * PM_PAGE_SIZE) {
        errno = ENOSPC;
        return false;
    }
    if (mutant == MUTANT_NO_END && ending && file == PM_JOURNAL_SELF)
        return true;
    if (!operation()) { // as write() may: a part has been written
        size_t part = (len / 2) & ~(size_t)(SECTOR - 1);
        if (part)
            change(f, from, part, at);
        return false;
    }
    change(f, from, len, at);
    return true;
}

static bool w_read(unsigned file, void *to, size_t len, uint64_t at) {
    const struct file *f = &world->file[world_file(file)];
    if (at + len > f->size) {
        errno = PM_JOURNAL_ENDS;
        return false;
    }
    memcpy(to, f->now + at, len);
    return true;
}

static bool w_zero(unsigned file, uint64_t at, uint64_t len) {
    struct file *f = &world->file[world_file(file)];
    if (!operation())
        return false;
    uint64_t most = most_pages[world_file(file)] * PM_PAGE_SIZE;
    uint64_t end = at + len > most ? most : at + len;
    if (at < end)
        change(f, NULL, end - at, at);
    return true;
}

static bool w_set_length(unsigned file, uint64_t bytes) {
    struct file *f = &world->file[world_file(file)];
    if (!operation())
        return false;
    for (uint64_t page = bytes / PM_PAGE_SIZE; page * PM_PAGE_SIZE < f->size; page++) {
        memset(f->now + page * PM_PAGE_SIZE, 0, PM_PAGE_SIZE);
        note_version(f, page);
    }
    f->size = bytes;
    return true;
}

static bool sync_left_out(unsigned file) {
    bool left_out = (mutant == MUTANT_NO_SUPER_SYNC && file == PM_JOURNAL_SUPER) ||
                    (mutant == MUTANT_NO_DATA_SYNC && file == PM_JOURNAL_DATA) ||
                    (mutant == MUTANT_NO_SLABS_SYNC && file == PM_JOURNAL_SLABS) ||
                    (mutant == MUTANT_NO_RETIRE_SYNC && retiring) ||
                    (mutant == MUTANT_PART_NO_SYNC && file != PM_JOURNAL_SELF) ||
                    (mutant == MUTANT_NO_KILL_SYNC && inheriting) ||
                    (mutant == MUTANT_NO_CHECKPOINT && ending && file != PM_JOURNAL_SELF) ||
                    (mutant == MUTANT_NO_END_SYNC && ending && file == PM_JOURNAL_SELF);
    inheriting = false;
    return left_out;
}

static void make_durable(unsigned i) {
    struct file *f = &world->file[i];
    for (unsigned page = 0; page < most_pages[i]; page++) {
        if (f->versions[page] == 1)
            continue;
        memcpy(f->version[page][0].bytes, f->now + page * PM_PAGE_SIZE, PM_PAGE_SIZE);
        f->versions[page] = 1;
    }
    f->durable_size = f->size;
}

static bool w_sync(unsigned file) {
    if (!operation())
        return false;
    if (!sync_left_out(file))
        make_durable(world_file(file));
    return true;
}

static const struct pm_journal_io w_io = {
    .write = w_write, .read = w_read, .zero = w_zero, .set_length = w_set_length, .sync = w_sync};

// Worlds that nobody uses. Images come and go by the ten thousand, each of some MiB, and
// AddressSanitizer's free() gives so much memory back to the system.
static struct world *spare[4];
static unsigned spares;

static struct world *world_room(void) {
    if (spares)
        return spare[--spares];
    struct world *w = calloc(1, sizeof(struct world));
    for (unsigned i = 0; i < W_ALL; i++)
        for (unsigned page = 0; page < FILE_PAGES; page++)
            w->file[i].versions[page] = 1;
    return w;
}

static void world_free(struct world *w) {
    if (spares < sizeof spare / sizeof spare[0])
        spare[spares++] = w;
    else
        free(w);
}

static struct world *world_new(void) {
    struct world *w = world_room();
    for (unsigned i = 0; i < W_ALL; i++) {
        struct file *f = &w->file[i];
        memset(f->now, 0, f->used * (size_t)PM_PAGE_SIZE);
        memset(f->version, 0, f->used * sizeof f->version[0]);
        for (unsigned page = 0; page < f->used; page++)
            f->versions[page] = 1;
        f->used = 0;
        f->size = f->durable_size = 0;
    }
    return w;
}

// Of a page with several versions: none of the later ones, the last one, or a mixture.
static void choose_page(struct file *to, const struct file *from, unsigned page, unsigned how) {
    unsigned count = from->versions[page], cut = (unsigned)rnd(SECTORS + 1);
    if (count == 1) {
        memcpy(to->now + page * PM_PAGE_SIZE, from->version[page][0].bytes, PM_PAGE_SIZE);
        return;
    }
    for (unsigned sector = 0; sector < SECTORS; sector++) {
        unsigned v = 0;
        switch (how == 5 ? rnd(5) : how) {
        case 1:
            v = count - 1;
            break;
        case 2:
            v = sector < cut ? count - 1 : 0;
            break;
        case 3:
            v = sector < cut ? 0 : count - 1;
            break;
        case 4:
            v = (unsigned)rnd(count);
        }
        memcpy(to->now + page * PM_PAGE_SIZE + sector * SECTOR,
               from->version[page][v].bytes + sector * SECTOR, SECTOR);
    }
}

// What a power failure at this moment may leave.
static struct world *world_image(const struct world *from) {
    struct world *w = world_room();
    unsigned way = (unsigned)rnd(6); // all pages old, all new, a part of the file, or as it comes
    for (unsigned i = 0; i < W_ALL; i++) {
        struct file *to = &w->file[i];
        const struct file *f = &from->file[i];
        bool longer = rnd(2);
        unsigned limit = (unsigned)rnd(f->size / PM_PAGE_SIZE + 1);
        to->size = to->durable_size = way == 0 || (way > 1 && longer) ? f->durable_size : f->size;
        for (unsigned page = 0; page < f->used || page < to->used; page++) {
            unsigned part = (page < limit) == (way == 2);
            choose_page(to, f, page, way < 2 ? way : way < 4 ? part : (unsigned)rnd(6));
            if (page * PM_PAGE_SIZE >= to->size && !on_part)
                memset(to->now + page * PM_PAGE_SIZE, 0, PM_PAGE_SIZE);
            memcpy(to->version[page][0].bytes, to->now + page * PM_PAGE_SIZE, PM_PAGE_SIZE);
            to->versions[page] = 1;
        }
        to->used = f->used;
    }
    return w;
}

#endif
