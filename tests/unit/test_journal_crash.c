// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The journal under power failure (journal_world.h): commits in laps, full disks, kills, recoveries
// that are cut a second time, and use of the files without the journal after that. Each image must
// recover to the state of one commit: the last that counts, or the one that is being made. Then
// mutants, each of which leaves out a sync or changes an order: some image must show it. All of it
// for files of a directory, and again for parts of a fixed medium. Sanitizers look at no mutants.
//
//   build/unit/test_journal_crash [IMAGES]
#include "journal_on_part.h"
#include "journal_wrong.h"
#include "media/journal/checkpoint.h"

#ifdef __SANITIZE_ADDRESS__
#define SANITIZED true
#else
#define SANITIZED false
#endif

static const unsigned files[] = {PM_JOURNAL_SUPER, PM_JOURNAL_DATA, PM_JOURNAL_SLABS};
#define FILES (sizeof files / sizeof files[0])
#define PAGES 6u // of each file
#define LAP (10 * PM_PAGE_SIZE)
#define LEAST(i) ((i) ? 1u : 2u) // pages; the superblock has its number of applied commits

// The contents that a commit stands for.
struct state {
    unsigned char bytes[FILES][PAGES * PM_PAGE_SIZE];
    uint64_t size[FILES];
};
static struct state before, after; // the last commit that counts; the one that is being made
static struct state failed;        // one whose sync has failed: it may count until the next one
static bool counts;                // the one that is being made counts already
static bool has_failed;
static uint64_t images, wrong, second_cuts, epoch;
static const uint8_t uuid[16] = "journal of test";
static char *buffer, *inner_buffer, *recover_buffer;
static const struct pm_journal_io *io;

static struct world *image_of(const struct world *from) {
    struct world *w = world_image(from);
    if (on_part)
        p_image(w);
    return w;
}

// The superblock's words on the journal are the journal's own.
static bool same(const unsigned char *a, const unsigned char *b, uint64_t len, bool super) {
    const size_t at = offsetof(struct pm_super_file, state.lap);
    const size_t next = offsetof(struct pm_super_file, state.applied) + sizeof(uint64_t);
    if (!super)
        return memcmp(a, b, len) == 0;
    return memcmp(a, b, at) == 0 && memcmp(a + next, b + next, len - next) == 0;
}

static bool is_state(const struct world *w, const struct state *s) {
    for (unsigned i = 0; i < FILES; i++) {
        const struct file *f = &w->file[i + 1];
        // Opening cuts off what lies beyond.
        if (f->size < s->size[i] || !same(f->now, s->bytes[i], s->size[i], i == 0))
            return false;
    }
    return true;
}

// Recovers an image and compares.
static void check_image(struct world *image, void *room) {
    struct pm_journal_found found;
    struct world *outer = world;
    world = image;
    bool good =
        mutant >= MUTANT_SKIPS
            ? wrong_recover(io, room, uuid, (enum wrong_way)(mutant - MUTANT_SKIPS))
            : pm_journal_look(io, room, uuid, &found) == 0 && pm_journal_recover(io, room, &found);
    world = outer;
    good = good && (is_state(image, &after) || (!counts && is_state(image, &before)) ||
                    (has_failed && is_state(image, &failed)));
    wrong += !good;
    images++;
    world_free(image);
}

// Calls `step` without cuts and failures of its own.
static void aside(void (*step)(void)) {
    void (*outer)(void) = at_operation;
    int fails = fail_in;
    bool inherits = inheriting, retires = retiring, ends = ending;
    at_operation = NULL;
    fail_in = -1;
    inheriting = retiring = ending = false;
    step();
    at_operation = outer;
    fail_in = fails;
    inheriting = inherits;
    retiring = retires;
    ending = ends;
}

// In the recovery of an image. The images of these cuts are not cut again.
static void take_second(void) {
    check_image(image_of(world), inner_buffer);
    second_cuts++;
}
static void cut_recovery(void) {
    if (rnd(3) == 0)
        aside(take_second);
}

static void take_images(void) {
    for (unsigned i = 0; i < 3; i++) {
        at_operation = i == 2 ? cut_recovery : NULL;
        check_image(image_of(world), buffer);
    }
}
static void cut(void) { aside(take_images); }

// ---- commits ------------------------------------------------------------------------------------

static char *group;

static void change_state(void) {
    counts = false;
    before = after;
    for (unsigned i = 0; i < FILES; i++) {
        if (rnd(4) == 0)
            after.size[i] = (LEAST(i) + rnd(PAGES - LEAST(i) + 1)) * PM_PAGE_SIZE;
        memset(after.bytes[i] + after.size[i], 0, sizeof after.bytes[i] - after.size[i]);
        for (unsigned n = (unsigned)rnd(4); n; n--) {
            unsigned char *page = after.bytes[i] + rnd(after.size[i] / PM_PAGE_SIZE) * PM_PAGE_SIZE;
            if (rnd(4) == 0)
                memset(page, 0, PM_PAGE_SIZE);
            else
                for (unsigned at = 0; at < PM_PAGE_SIZE; at++)
                    page[at] = (unsigned char)rnd(256);
        }
    }
}

static void write_changes(struct pm_journal *j) {
    static const unsigned char zeroes[PM_PAGE_SIZE];
    for (unsigned i = 0; i < FILES; i++) {
        if (rnd(4) == 0) // as rounds do
            pm_journal_write_out(j);
        pm_journal_add_length(j, files[i], after.size[i]);
        for (unsigned page = 0; page * PM_PAGE_SIZE < after.size[i]; page++) {
            const unsigned char *now = after.bytes[i] + page * PM_PAGE_SIZE;
            if (memcmp(now, before.bytes[i] + page * PM_PAGE_SIZE, PM_PAGE_SIZE) == 0)
                continue;
            if (memcmp(now, zeroes, PM_PAGE_SIZE) == 0)
                pm_journal_add_zeroes(j, files[i], page, 1);
            else
                pm_journal_add_pages(j, files[i], page, now, 1);
        }
        if (after.size[i] < before.size[i])
            pm_journal_add_zeroes(j, files[i], after.size[i] / PM_PAGE_SIZE,
                                  (before.size[i] - after.size[i]) / PM_PAGE_SIZE);
    }
}

// A file becomes longer before the commit, and shorter after it.
static bool set_lengths(bool longer) {
    bool good = true;
    for (unsigned i = 0; i < FILES && good; i++)
        if (longer ? world->file[i + 1].size < after.size[i]
                   : world->file[i + 1].size > after.size[i])
            good = io->set_length(files[i], after.size[i]);
    return good;
}

static struct pm_journal journal;
static struct pm_journal_found written;
static bool unapplied;

static bool write_through(void) {
    unapplied = !pm_checkpoint_write_through(&journal, &written);
    return !unapplied;
}

static bool prepare(void) {
    if (unapplied && !write_through())
        return false;
    ending = true;
    bool good = pm_checkpoint_prepare(&journal);
    ending = false;
    return good;
}

static void begin_process(void) {
    journal = (struct pm_journal){.io = io, .first = (void *)group, .most = 3};
    pm_checkpoint_begin(&journal, 1);
    unapplied = false;
}

// The process is killed: what is cached stays. The next one recovers, and may be cut.
static void die_and_recover(void) {
    struct pm_journal_found found;
    inheriting = true;
    int error = pm_journal_look(io, recover_buffer, uuid, &found);
    wrong += error != 0;
    if (error || !pm_journal_recover(io, recover_buffer, &found))
        return;
    if (has_failed && is_state(world, &failed))
        after = failed;
    wrong += !is_state(world, &after);
    has_failed = inheriting = false;
    begin_process();
}

static bool become_durable(void) {
    if (!pm_journal_end(&journal))
        return false;
    written = pm_journal_found_last(&journal);
    pm_checkpoint_make_room(&journal);
    if (mutant == MUTANT_EARLY)
        pm_checkpoint_write_through(&journal, &written);
    if (rnd(10) == 0) { // what it has written is there, and not durable
        fail_in = -1;
        die_and_recover();
        return true;
    }
    return mutant == MUTANT_NO_SYNC || io->sync(PM_JOURNAL_SELF);
}

// As commit.c does it. False: no commit was made, or it was not applied.
static bool commit(void) {
    if (!prepare())
        return false;
    change_state();
    epoch++;
    pm_journal_begin(&journal, uuid, epoch, epoch);
    write_changes(&journal);
    if (!set_lengths(true) || !become_durable()) { // it may be whole, though
        failed = after;
        after = before;
        counts = has_failed = true;
        has_failed = !pm_checkpoint_retire(&journal);
        return false;
    }
    counts = true;
    has_failed = false;
    if (!journal.at) // it was killed
        return true;
    pm_journal_count(&journal);
    return write_through() && set_lengths(false);
}

// Files change in place, each change synced, as without a journal. On a medium it is flushed, which
// makes nothing else durable.
static void go_without(void) {
    retiring = true;
    bool good = mutant == MUTANT_NO_RETIRE || pm_checkpoint_retire(&journal);
    retiring = has_failed = false;
    if (!good)
        return;
    for (unsigned n = 0; n < 3; n++) {
        counts = false;
        before = after;
        unsigned i = (unsigned)rnd(FILES);
        uint64_t at = rnd(after.size[i] / PM_PAGE_SIZE) * PM_PAGE_SIZE;
        memset(after.bytes[i] + at, (int)rnd(256), SECTOR);
        io->write(files[i], after.bytes[i] + at, SECTOR, at);
        if (on_part)
            p_flush(files[i], at);
        else
            io->sync(files[i]);
        counts = true;
    }
}

static void one_life(void) {
    begin_process();
    world = world_new();
    memset(&after, 0, sizeof after);
    for (unsigned i = 0; i < FILES; i++)
        world->file[i + 1].size = world->file[i + 1].durable_size = after.size[i] =
            LEAST(i) * PM_PAGE_SIZE;
    if (on_part)
        p_begin();
    before = after;
    counts = true;
    has_failed = false;
    at_operation = cut;
    for (unsigned n = 0; n < 12; n++) {
        fail_in = rnd(6) ? -1 : (int)rnd(12);
        bool made = commit();
        fail_in = -1;
        if (rnd(made ? 8 : 2) == 0)
            die_and_recover();
        else if (rnd(8) == 0 && !unapplied)
            go_without();
    }
    at_operation = NULL;
    world_free(world);
}

static bool run(enum mutant which, uint64_t most, bool until_wrong) {
    mutant = which;
    images = wrong = second_cuts = epoch = 0;
    while (images < most && !(until_wrong && wrong))
        one_life();
    return wrong == 0;
}

// A sync of one part is one of all: so it does no harm to leave out a single one.
static bool is_for(enum mutant m) {
    bool of_parts = m >= MUTANT_PART_KEEPS && m <= MUTANT_PART_NO_SYNC;
    bool of_files = m >= MUTANT_NO_SUPER_SYNC && m <= MUTANT_NO_SLABS_SYNC;
    return on_part ? !of_files : !of_parts;
}

static void run_all(uint64_t most) {
    io = on_part ? &p_io : &w_io;
    CHECK(run(MUTANT_NONE, most, false));
    printf("%s: images %llu, second cuts %llu, wrong %llu\n", on_part ? "parts" : "files",
           (unsigned long long)images, (unsigned long long)second_cuts, (unsigned long long)wrong);
    for (enum mutant m = MUTANT_NONE + 1; m < MUTANTS; m++) {
        if (!is_for(m) || SANITIZED)
            continue;
        bool survived = run(m, (on_part ? 25 : 10) * most, true);
        printf("mutant %d: %s after %llu images\n", (int)m, survived ? "SURVIVED" : "killed",
               (unsigned long long)images);
        CHECK(!survived);
    }
}

int main(int argc, char **argv) {
    uint64_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : 8000;
    buffer = malloc(PM_JOURNAL_BUFFER);
    inner_buffer = malloc(PM_JOURNAL_BUFFER);
    recover_buffer = malloc(PM_JOURNAL_BUFFER);
    group = malloc(PM_JOURNAL_BUFFER);
    pm_checkpoint_lap = LAP;
    pm_checkpoint_kept = LAP + 8 * PM_PAGE_SIZE;
    run_all(most);
    on_part = true;
    run_all(most);
    return CHECK_DONE();
}
