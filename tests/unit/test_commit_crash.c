// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Commits of a real heap under power failure (page_cache.h). commit.c, journal.c and
// journal_files.c work on files; their system calls are seen here, and noted in a model of the page
// cache. Before each of them the power may fail. Each image is recovered, and that recovery is cut
// again, and once more. What is left must be what the memory held at the instant of one commit:
// the last one that counts, or the one that is being made. Some images are written to files; the
// next process opens them and goes on.
//
//   build/unit/test_commit_crash [IMAGES [SEED]]
//   build/unit/test_commit_crash mutants    each leaves out a sync or a check, or changes an order,
//                                           and some image must show it (tests/crash/run --mutate)
//
// Two runs with the same seed and no address randomization (setarch -R) are the same.
#include "commit_calls.h"

#include "blocks/verify.h"
#include "media/commit/commit.h"
#include "media/journal/checkpoint.h"

// So short that some commits make a lap; and a commit may be longer than what is kept.
#define LAP ((uint64_t)128 << 10)
#define KEPT ((uint64_t)1 << 20)
#define WIDE 280 // pages, more than a group has

static struct pm_error err;

// ---- a process ----------------------------------------------------------------------------------

#define HELD 12

static uint32_t held[HELD];
static char *root_pages;

static char *map_of(unsigned file) {
    struct pm_shard *s = &pm_heap.shard[0];
    switch (file) {
    case PM_JOURNAL_SUPER:
        return pm_heap.super_file.map;
    case PM_JOURNAL_ROOTS:
        return root_pages;
    case PM_JOURNAL_DATA:
        return s->data.map;
    case PM_JOURNAL_SLABS:
        return s->slabs.map;
    case PM_JOURNAL_LOG:
        return s->log.map;
    }
    return s->morph.map;
}

static uint64_t length_of(unsigned file) {
    const struct pm_shard *s = &pm_heap.shard[0];
    const uint64_t lengths[FILES] = {0,
                                     pm_heap.super_file.size,
                                     root_pages ? pm_heap.roots.size : 0,
                                     s->frontier,
                                     s->slabs.size,
                                     s->log.size,
                                     s->morph.map ? s->morph.size : 0};
    return lengths[file];
}

// What the memory holds.
static void capture(unsigned number) {
    for (unsigned file = 1; file < FILES; file++) {
        states[number].size[file] = length_of(file);
        memcpy(states[number].bytes[file], map_of(file), length_of(file));
        for (uint64_t page = 0; page < length_of(file) / PM_PAGE_SIZE; page++)
            states[number].hash[file][page] =
                hash_of(states[number].bytes[file] + page * PM_PAGE_SIZE);
    }
}

static void step(void) {
    unsigned i = (unsigned)rnd(HELD);
    if (rnd(4) == 0)
        pm_heap.super->state.owner_start = rnd(1 << 30); // any word of it that nothing depends on
    if (!held[i]) {
        held[i] = pm_extent_allocate(1 + rnd(rnd(8) ? 30 : 300), 1);
        return;
    }
    char *at = pm_extent_address(&pm_extents[held[i]]);
    uint64_t pages = pm_extents[held[i]].pages;
    if (rnd(3) == 0) {
        pm_extent_release(held[i]);
        held[i] = 0;
        if (rnd(2))
            pm_extent_purge(rnd(2));
        return;
    }
    for (unsigned n = (unsigned)rnd(6); n; n--)
        memset(at + rnd(pages) * PM_PAGE_SIZE, (int)rnd(256), 1 + rnd(PM_PAGE_SIZE));
    if (root_pages)
        root_pages[rnd(pm_heap.roots.size)] = (char)rnd(256);
}

// The data file becomes as short as it can be.
static void give_all_back(void) {
    for (unsigned i = 0; i < HELD; i++) {
        if (held[i])
            pm_extent_release(held[i]);
        held[i] = 0;
    }
    pm_extent_purge(true);
}

static void check_now(void) {
    watching = false;
    check_image(image_of(&worlds[0]));
    watching = true;
}

static void bring(void) {
    pm_commit_bring();
    pm_commit_cut();
}

// `later`: the commit is brought to the files after changes that it does not have, or by the next
// one.
static void commit(bool later) {
    struct pm_commit_cost cost;
    catching_up = true;
    bool prepared = pm_commit_prepare();
    catching_up = false;
    if (!prepared)
        return;
    unsigned fresh = !shared->after;
    capture(fresh);
    shared->before = shared->after;
    shared->after = fresh;
    shared->counts = false;
    committing = true;
    pm_commit_take(rnd(4) != 0, &cost);
    bool good = pm_commit_enforce();
    if (good && !later)
        bring();
    committing = false;
    shared->commits += good;
    if (!good) { // it may be whole, though
        struct state other = states[2];
        states[2] = states[fresh];
        states[fresh] = other;
        shared->failed = worlds[0].file[PM_JOURNAL_SELF].size != 0;
        shared->after = shared->before;
    }
    shared->counts = true;
    for (unsigned n = later ? (unsigned)rnd(8) : 0; n; n--)
        step();
    if (good && later && rnd(2))
        bring();
}

// A commit whose journal is longer than what is kept of it.
static void commit_much(void) {
    const uint64_t pages = KEPT / PM_PAGE_SIZE + 100;
    shared->much = true;
    thin = 20;
    uint32_t index = pm_extent_allocate(pages, 1);
    MUST(index);
    memset(pm_extent_address(&pm_extents[index]), 'm', pages * PM_PAGE_SIZE);
    commit(false);
    CHECK_EQ(worlds[0].file[PM_JOURNAL_SELF].size, KEPT);
    pm_extent_release(index);
    pm_extent_purge(true);
    commit(false);
    thin = 4;
}

static void begin_commits(void) {
    watching = first_syncs = true;
    worlds[0].named = true;
    worlds[0].name_durable = false;
    note_inodes();
    MUST(pm_heap_journal(&err) == PM_OK);
    if (pm_file_ready(&pm_heap.roots) && pm_heap.roots.size) {
        root_pages = mmap(NULL, pm_heap.roots.size, PROT_READ | PROT_WRITE, MAP_PRIVATE,
                          pm_heap.roots.fd, 0);
        MUST(root_pages != MAP_FAILED);
        pm_commit_add_root(root_pages, pm_heap.roots.size, 0);
    }
    first_syncs = false;
    note_file(PM_JOURNAL_SUPER); // it was flushed: all else is durable
    cache_sync(&worlds[0], PM_JOURNAL_SUPER);
    capture(shared->after);
    shared->counts = true;
    shared->failed = false;
    taking = true;
}

static void take_up_extents(void) {
    unsigned n = 0;
    for (uint64_t page = 0; page * PM_PAGE_SIZE < pm_heap.shard[0].frontier && n < HELD;) {
        uint32_t index = *pm_page_extent(page);
        if (pm_extents[index].state == PM_EXTENT_ACTIVE)
            held[n++] = index;
        page += pm_extents[index].pages;
    }
}

static void one_life(void) {
    fixture_seed = shared->seed;
    for (unsigned file = 0; file < FILES && shared->goes_on; file++) {
        note_file(file);
        cache_sync(&worlds[0], file);
    }
    if (shared->goes_on) {
        note_inodes();
        taking = watching = worlds[0].file[PM_JOURNAL_SELF].size != 0;
        if (fixture_reopen(PM_OPEN_EXISTING, &err) != PM_OK || pm_verify(false, &err) != PM_OK) {
            shared->wrong++;
            CHECK_STR(shared->mutant ? "" : err.text, "");
            _exit(check_failures != 0);
        }
        shared->opened++;
        take_up_extents();
    } else {
        fixture_new_heap();
        MUST(ftruncate(pm_heap.roots.fd, 2 * PM_PAGE_SIZE) == 0);
        pm_heap.roots.size = 2 * PM_PAGE_SIZE;
    }
    shared->goes_on = false;
    begin_commits();
    if ((!shared->much || rnd(40) == 0) && !shared->mutant)
        commit_much();
    bool lossy = rnd(3) == 0; // with few images, so that there are many laps
    thin = lossy ? 400 : 4;
    // Commits of several groups, which lie in the same places.
    bool wide = rnd(24) == 0;
    uint32_t index = wide ? pm_extent_allocate(WIDE, 1) : 0;
    for (unsigned n = 0; n < (lossy ? 60 : 10) && shared->images < shared->most_images; n++) {
        if (wide)
            memset(pm_extent_address(&pm_extents[index]), 1 + (int)rnd(255), WIDE * PM_PAGE_SIZE);
        for (unsigned k = (unsigned)rnd(12); k; k--)
            step();
        if (lossy && rnd(6) == 0)
            give_all_back();
        fail_in = rnd(4) ? -1 : (int)rnd(40);
        lose_next |= lossy && rnd(3) == 0;
        commit(rnd(2));
        fail_in = -1;
        if (lossy)
            check_now();
    }
    shared->seed = fixture_seed;
}

// ---- all ----------------------------------------------------------------------------------------

static void *share_memory(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

// Until there are so many images, or (a mutant) one is wrong. Returns whether none was wrong.
static bool run(enum mutant mutant, unsigned most) {
    uint64_t seed = shared->seed;
    bool much = shared->much;
    *shared = (struct shared){
        .most_images = most, .mutant = mutant, .seed = seed ? seed : 1, .much = much};
    while (shared->images < most && !shared->wrong) {
        if (!shared->goes_on)
            fixture_make();
        int status = in_child(one_life);
        CHECK(status == 0 || mutant);
        shared->wrong += status != 0;
        if (!shared->goes_on || shared->wrong)
            fixture_drop();
    }
    if (shared->goes_on)
        fixture_drop();
    return !shared->wrong;
}

static void run_mutants(void) {
    for (enum mutant m = MUTANT_NONE + 1; m < MUTANTS; m++) {
        if (m == NO_SYNC_MORPH) // the same call as of the others; this test makes no slabs
            continue;
        bool survived = run(m, 60000);
        printf("%-8s %s: after %lu images\n", survived ? "SURVIVED" : "killed", mutant_name[m],
               (unsigned long)shared->images);
        fflush(stdout);
        CHECK(!survived);
    }
}

int main(int argc, char **argv) {
    pm_options_default();
    worlds_make();
    shared = share_memory(sizeof *shared);
    states = share_memory(3 * sizeof *states);
    for (unsigned i = 0; i < 3; i++)
        for (unsigned file = 1; file < FILES; file++) {
            states[i].bytes[file] = share_memory(LARGEST);
            states[i].hash[file] = share_memory(MOST_PAGES * sizeof(uint64_t));
        }
    for (unsigned d = 0; d < DEPTH; d++)
        buffers[d] = reserve_memory(PM_JOURNAL_BUFFER);
    pm_checkpoint_lap = LAP;
    pm_checkpoint_kept = KEPT;
    if (argc > 1 && strcmp(argv[1], "mutants") == 0) {
        run_mutants();
        return CHECK_DONE();
    }
    shared->seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    CHECK(run(MUTANT_NONE, argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 4000));
    printf(
        "images %lu, second cuts %lu, third cuts %lu, lost syncs %lu, commits %lu, opened by the "
        "library %lu, wrong %lu\n",
        (unsigned long)shared->images, (unsigned long)shared->again, (unsigned long)shared->third,
        (unsigned long)shared->lost, (unsigned long)shared->commits, (unsigned long)shared->opened,
        (unsigned long)shared->wrong);
    return CHECK_DONE();
}
