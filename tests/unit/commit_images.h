// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Of test_commit_crash: what an image must recover to, and mutants of recovery.
#ifndef PMALLOC_TESTS_UNIT_COMMIT_IMAGES_H
#define PMALLOC_TESTS_UNIT_COMMIT_IMAGES_H

#include "journal_wrong.h"
#include "page_cache.h"

enum mutant {
    MUTANT_NONE,
    NO_SYNC_SUPER, // of a member, after a commit was brought into it: its number
    NO_SYNC_ROOTS,
    NO_SYNC_DATA,
    NO_SYNC_SLABS,
    NO_SYNC_LOG,
    NO_SYNC_MORPH,
    NO_SYNC_JOURNAL,   // before the commit counts
    LATE_SYNC_JOURNAL, // after the first sync of another file
    LATE_SYNC_FILES,   // after the journal was changed for the next lap
    NO_END,            // the header of a lap that ends is left as it is
    NO_END_SYNC,       // it is zeroed, but that is not durable
    NO_FIRST_SYNC,     // of what is in the files when commit mode begins
    NO_NAME_SYNC,      // of the directory, when the journal is made
    EARLY_RETIRE,      // recovery empties the journal before its commit's files are synced
    NO_INHERITED_SYNC, // of a journal that a killed process left
    LEFT_BEHIND,       // a commit that the next one is to bring into the files first
    SKIPS,             // see journal_wrong.h
    ORDER,
    NO_CHAIN,
    NO_CRC,
    MUTANTS
};
static const char *const mutant_name[] = {"none",
                                          "no sync of the superblock",
                                          "no sync of roots",
                                          "no sync of heap.0",
                                          "no sync of slabs.0",
                                          "no sync of booklog.0",
                                          "no sync of morph.0",
                                          "no sync of the journal",
                                          "sync of the journal after that of a file",
                                          "sync of files after the journal was written anew",
                                          "no end of a lap",
                                          "no sync of the end of a lap",
                                          "no sync when commit mode begins",
                                          "no sync of the directory",
                                          "journal emptied before files are synced",
                                          "no sync of an inherited journal",
                                          "a commit left behind by the next one",
                                          "a commit of several is left out",
                                          "commits in another order",
                                          "groups of other commits",
                                          "no checksum"};

// The contents that a commit stands for.
struct state {
    uint64_t size[FILES];
    unsigned char *bytes[FILES];
    uint64_t *hash[FILES]; // of each whole page
};

// What outlives a process of the test.
static struct shared {
    uint64_t images, again, third, lost, wrong, commits, opened;
    unsigned most_images, before, after; // states
    uint64_t clock;                      // nanoseconds: no process is earlier than the one before
    enum mutant mutant;
    bool counts;  // the commit that is being made counts already
    bool failed;  // state 2 is one whose sync has failed: it may count until the next one does
    bool goes_on; // the files are an image
    bool much;    // there was a commit of more than the journal keeps
    uint64_t seed;
} * shared;
static struct state *states; // three of them, shared

static const char *const file_name[FILES] = {"journal", "superblock", "roots",  "heap.0",
                                             "slabs.0", "booklog.0",  "morph.0"};

// ---- an image: recovery, and what must be there -------------------------------------------------

static struct world *image; // that is being recovered
static void check_image(struct world *w);

// A recovery is cut at some of its steps, whose number is about that of the last one as deep.
#define CUTS 4u // of a recovery, and half as many of one after a cut
static unsigned steps[DEPTH], steps_before[DEPTH];

// Before each change by a recovery.
static void cut_recovery(void) {
    struct world *outer = image;
    size_t depth = (size_t)(outer - worlds);
    steps[depth]++;
    if (depth == DEPTH - 1 || rnd(steps_before[depth] + 1) >= CUTS / depth)
        return;
    check_image(image_of(outer));
    shared->again++;
    shared->third += depth != 1;
    image = outer;
}

static bool is_left_out(unsigned file) {
    return file != PM_JOURNAL_SELF && shared->mutant == (enum mutant)file;
}

static bool i_write(unsigned file, const void *from, size_t len, uint64_t at) {
    cut_recovery();
    cache_write(image, file, from, len, at);
    return true;
}
static bool i_read(unsigned file, void *to, size_t len, uint64_t at) {
    return cache_read(image, file, to, len, at);
}
static bool i_zero(unsigned file, uint64_t at, uint64_t len) {
    uint64_t size = image->file[file].size;
    cut_recovery();
    if (at < size)
        cache_write(image, file, NULL, at + len < size ? len : size - at, at);
    return true;
}
static bool i_set_length(unsigned file, uint64_t bytes) {
    cut_recovery();
    cache_set_length(image, file, bytes);
    return true;
}
// The sync of the journal makes it end, and no commit count.
static bool has_ended(const struct world *w) {
    const struct cached_file *f = &w->file[PM_JOURNAL_SELF];
    return f->size == 0 ||
           memcmp(page_now(w, PM_JOURNAL_SELF, 0), zero_page, PM_JOURNAL_SECTOR) == 0;
}

static int lose_in = -1; // the sync after so many loses what it should write

static bool i_sync(unsigned file) {
    static unsigned late;
    cut_recovery();
    if (lose_in >= 0 && lose_in-- == 0) {
        cache_lose(image, file);
        errno = EIO;
        return false;
    }
    if (is_left_out(file) ||
        (shared->mutant == NO_INHERITED_SYNC && file == PM_JOURNAL_SELF && !has_ended(image)))
        return true;
    if (shared->mutant == EARLY_RETIRE && file != PM_JOURNAL_SELF) {
        late |= 1u << file;
        return true;
    }
    cache_sync(image, file);
    if (shared->mutant != EARLY_RETIRE || image->file[file].size != 0)
        return true;
    cut_recovery();
    for (unsigned i = 1; i < FILES; i++)
        if (late & (1u << i))
            cache_sync(image, i);
    late = 0;
    return true;
}
static const struct pm_journal_io image_io = {
    .write = i_write, .read = i_read, .zero = i_zero, .set_length = i_set_length, .sync = i_sync};

// The superblock's words on the journal are the journal's own.
static bool is_state_page(const unsigned char *page, const unsigned char *wanted) {
    const size_t at = offsetof(struct pm_state, lap);
    const size_t next = offsetof(struct pm_state, applied) + sizeof(uint64_t);
    return memcmp(page, wanted, at) == 0 &&
           memcmp(page + next, wanted + next, PM_PAGE_SIZE - next) == 0;
}

static bool file_is(const struct world *w, const struct state *s, unsigned file) {
    uint64_t size = s->size[file];
    // Opening cuts off what lies beyond; a file that is shorter would be damage.
    if (w->file[file].size < size)
        return false;
    for (uint64_t at = 0; at < size; at += PM_PAGE_SIZE) {
        uint64_t part = size - at < PM_PAGE_SIZE ? size - at : PM_PAGE_SIZE;
        const unsigned char *page = page_now(w, file, at / PM_PAGE_SIZE);
        if (file == PM_JOURNAL_SUPER && at == offsetof(struct pm_super_file, state)) {
            if (!is_state_page(page, s->bytes[file] + at))
                return false;
            continue;
        }
        if (part == PM_PAGE_SIZE ? page_hash(page) != s->hash[file][at / PM_PAGE_SIZE]
                                 : memcmp(page, s->bytes[file] + at, part) != 0)
            return false;
    }
    return true;
}

static bool is_state(const struct world *w, unsigned number) {
    for (unsigned file = 1; file < FILES; file++)
        if (!file_is(w, &states[number], file))
            return false;
    return true;
}

static char *buffers[DEPTH];

static bool is_right(const struct world *w) {
    return is_state(w, shared->after) || (!shared->counts && is_state(w, shared->before)) ||
           (shared->failed && is_state(w, 2));
}

// The superblock counts no commit that the journal does not have.
static bool counts_right(const struct world *w, const struct pm_journal_found *found) {
    uint64_t word = 0;
    cache_read(w, PM_JOURNAL_SUPER, &word, sizeof word,
               offsetof(struct pm_super_file, state.applied));
    return word == 0 || (pm_sealed(word, PM_SALT_APPLIED) && pm_unseal(word) <= found->commits);
}

// The journal's lap is the one that follows the files, or that they hold.
static bool mark_right(const struct world *w, const struct pm_journal_found *found) {
    uint32_t mark = 0;
    cache_read(w, PM_JOURNAL_SUPER, &mark, sizeof mark, offsetof(struct pm_super_file, state.lap));
    return !found->groups || found->follows == mark || pm_journal_mark(found->id) == mark;
}

static bool recover(struct world *w) {
    struct pm_journal_found found;
    const struct pm_super_file *super = (void *)states[shared->after].bytes[PM_JOURNAL_SUPER];
    char *buffer = buffers[w - worlds];
    image = w;
    steps_before[w - worlds] = steps[w - worlds];
    steps[w - worlds] = 0;
    if (shared->mutant >= SKIPS)
        return wrong_recover(&image_io, buffer, super->super.uuid,
                             (enum wrong_way)(shared->mutant - SKIPS));
    return pm_journal_look(&image_io, buffer, super->super.uuid, &found) == 0 &&
           counts_right(w, &found) && mark_right(w, &found) &&
           pm_journal_recover(&image_io, buffer, &found);
}

// Once more, after a sync has failed: as a service manager does it.
static bool recover_patiently(struct world *w) {
    lose_in = w == &worlds[1] && rnd(3) == 0 ? (int)rnd(8) : -1;
    bool wanted = lose_in >= 0, good = recover(w);
    shared->lost += wanted && lose_in < 0;
    return good || (wanted && recover(w));
}

// Whatever a later cut leaves is the same.
static bool is_right_for_good(const struct world *w) {
    return is_right(w) && (w == &worlds[DEPTH - 1] || is_right(image_of(w)));
}

static void check_image(struct world *w) {
    int outer = lose_in;
    shared->wrong += !recover_patiently(w) || !is_right_for_good(w);
    lose_in = outer;
    shared->images++;
}

// The files become what the power failure has left; the next process opens them.
static void go_on_with(const struct world *w) {
    char path[160];
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", fixture_dir, file_name[i]);
        if (i == PM_JOURNAL_SELF && !w->named) {
            unlink(path);
            continue;
        }
        int fd = open(path, O_RDWR | O_CREAT, 0600);
        MUST(fd >= 0 && ftruncate(fd, 0) == 0 && ftruncate(fd, (off_t)w->file[i].size) == 0);
        for (uint64_t page = 0; page * PM_PAGE_SIZE < w->file[i].size; page++) {
            uint64_t at = page * PM_PAGE_SIZE, left = w->file[i].size - at;
            const unsigned char *bytes = page_now(w, i, page);
            if (memcmp(bytes, zero_page, PM_PAGE_SIZE) != 0)
                MUST(pwrite(fd, bytes, left < PM_PAGE_SIZE ? left : PM_PAGE_SIZE, (off_t)at) > 0);
        }
        close(fd);
    }
    shared->goes_on = true;
    shared->seed = fixture_seed;
    _exit(check_failures != 0);
}

#endif
