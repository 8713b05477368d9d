// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// MAP_SYNC is asked for every file of the heap. The fixture grants or refuses it as Linux does.
#include "dax_fixture.h"
#include "fork/private.h"
#include "media/backing/file.h"
#include "media/open/heap_open.h"
#include "state/heap_copy.h"

// Counts the shared writable mappings of the heap's files; *synced counts those with MAP_SYNC.
static unsigned heap_mappings(unsigned *synced) {
    char line[512];
    unsigned count = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    MUST(maps);
    *synced = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char prot[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, prot) != 3 || !strstr(line, fixture_root) ||
            prot[1] != 'w' || prot[3] != 's')
            continue;
        bool sync = false;
        for (unsigned i = 0; i < granted_count; i++)
            sync |= from >= granted[i].from && to <= granted[i].to;
        count++;
        *synced += sync;
    }
    fclose(maps);
    return count;
}

// superblock, slabs.0, booklog.0, morph.0, and heap.0 twice, because its unused end stays out of
// core dumps.
#define MAPPINGS 6

static void check_all_synced(void) {
    unsigned synced, all = heap_mappings(&synced);
    CHECK_EQ(all, MAPPINGS);
    CHECK_EQ(synced, all);
}

static void test_granted_for_every_file(void) {
    fixture_new_heap();
    CHECK(pm_durability == PM_DURABLE_LINE || pm_durability == PM_DURABLE_CACHE);
    CHECK_HAS(pm_persist_row(), "DAX with ");
    check_all_synced();
    MUST(pm_extent_allocate(16, 1));
}

// All files of the heap count as plain files, and the heap's guarantee says so.
static void check_downgraded(const char *name) {
    unsigned synced;
    refused_name = name;
    fixture_new_heap();
    CHECK_EQ(pm_durability, PM_DURABLE_PAGE);
    CHECK_HAS(pm_persist_row(), "plain file: ");
    if (pages_pass || strcmp(name, "heap.0") != 0)
        CHECK_HAS(pm_persist_row(), name);
    CHECK_EQ(heap_mappings(&synced), MAPPINGS);
    uint32_t extent = pm_extent_allocate(16, 1); // msync makes its log entry durable
    CHECK(extent != 0);
}

static void test_refused_for_the_data(void) { check_downgraded("heap.0"); }
static void test_refused_for_the_log(void) { check_downgraded("booklog.0"); }
static void test_refused_for_the_morph_tables(void) { check_downgraded("morph.0"); }
static void test_refused_for_the_roots(void) { check_downgraded("roots"); }

static void test_refused_for_the_superblock(void) { check_downgraded("superblock"); }

// The probe of one page is granted, the mapping of heap.0 is refused. The mapping counts.
static void test_granted_for_a_page_of_the_data(void) {
    pages_pass = true;
    check_downgraded("heap.0");
}

static void test_refused_by_the_medium(void) {
    refused_name = fixture_root;
    fixture_new_heap();
    CHECK_EQ(pm_durability, PM_DURABLE_PAGE);
    CHECK(strcmp(pm_persist_row(), pm_persist_guarantee(PM_DURABLE_PAGE)) == 0);
}

// A heap that was opened with MAP_SYNC never maps a file without it later. A refusal is an error.
static void test_refused_too_late(void) {
    fixture_new_heap();
    CHECK(pm_durability != PM_DURABLE_PAGE);
    refused_name = "roots";
    void *map = pm_file_map(&pm_heap.roots, NULL, PM_PAGE_SIZE, PROT_READ | PROT_WRITE, 0, 0);
    CHECK(map == MAP_FAILED && errno == EOPNOTSUPP);
    CHECK(pm_durability != PM_DURABLE_PAGE);
}

static void test_forced_lines_claim_nothing(void) {
    refused_name = "heap.0";
    pm_options.persist.number = PM_DURABLE_LINE + 1;
    fixture_new_heap();
    CHECK_EQ(pm_durability, PM_DURABLE_LINE);
    CHECK_HAS(pm_persist_row(), "PMALLOC_PERSIST=line");
    CHECK_HAS(pm_persist_row(), "nothing is promised");
}

// A user may declare that the caches of a DAX medium survive (PMALLOC_PERSIST). The guarantee then
// says who vouches for it.
static void test_forced_cache_on_dax(void) {
    pm_options.persist.number = PM_DURABLE_CACHE + 1;
    fixture_new_heap();
    CHECK_EQ(pm_durability, PM_DURABLE_CACHE);
    CHECK_HAS(pm_persist_row(), "DAX with caches");
    check_all_synced();
}

// The heap copy of a child lies in a directory without DAX. The child writes back pages; its parent
// goes on flushing lines.
static void test_copy_on_plain_files(void) {
    static char copy_name[32];
    struct pm_error err = {0};
    fixture_new_heap();

    snprintf(copy_name, sizeof copy_name, "heap.%d", (int)getpid());
    refused_name = copy_name;
    if (pm_heap_copy_make(&err) != PM_OK)
        printf("  %s\n", err.text);
    CHECK_EQ(err.status, PM_OK);
    CHECK_EQ(pm_durability, PM_DURABLE_PAGE);
    pm_heap_copy_part();
}

static void test_taken_range_is_named(void) {
    struct pm_error err = {0};
    fixture_tables();
    CHECK_EQ(pm_heap_open(fixture_dir, PM_OPEN_CREATE, false, &err), PM_OK);
    void *taken = mmap(pm_heap_at(8 << 20), PM_PAGE_SIZE, PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(taken != MAP_FAILED);
    CHECK_EQ(pm_heap_map(&err), PM_OPERATIONAL);
    CHECK_HAS(err.text, "is taken by");
}

int main(void) {
    pm_options_default();
    RUN_CHILD(granted_for_every_file);
    RUN_CHILD(refused_for_the_data);
    RUN_CHILD(refused_for_the_log);
    RUN_CHILD(refused_for_the_morph_tables);
    RUN_CHILD(refused_for_the_roots);
    RUN_CHILD(refused_for_the_superblock);
    RUN_CHILD(granted_for_a_page_of_the_data);
    RUN_CHILD(refused_by_the_medium);
    RUN_CHILD(refused_too_late);
    RUN_CHILD(forced_lines_claim_nothing);
    RUN_CHILD(forced_cache_on_dax);
    RUN_CHILD(copy_on_plain_files);
    RUN_CHILD(taken_range_is_named);
    return CHECK_DONE();
}
