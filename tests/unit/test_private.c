// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Private memory in place of the shared heap. What is in use keeps its contents at its addresses.
// No later store reaches the file. What was free or a hole never shows the file.
#include "base/os.h"
#include "fork/private.h"

#include <sys/resource.h>

#include "heap_fixture.h"
#include "media/backing/backing.h"
#include "media/open/heap_open.h"
#include "pages/extent_group.h"

#define MIB ((size_t)1 << 20)

static void start(void) {
    struct pm_error err;
    pm_options_default();
    MUST(pm_option_set("PMALLOC_DECAY_MS", "3600000", &err) == PM_OK);
    fixture_new_heap();
}

static uint64_t *take(uint64_t pages) {
    uint32_t index = pm_extent_take(pages, 1);
    MUST(index && pm_extent_publish(index, false));
    return pm_extent_address(&pm_extents[index]);
}

static void give(void *p) { MUST(pm_extent_free_block(p)); }

// These read and change the byte of heap.0 at an address through the file, as another process
// would.
static unsigned char file_byte(const void *p) {
    unsigned char byte = 0;
    char path[160];
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    int fd = open(path, O_RDONLY);
    MUST(pread(fd, &byte, 1, (off_t)pm_heap_offset(p)) == 1);
    close(fd);
    return byte;
}

static void others_store(const void *p, char byte) {
    char path[160];
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    int fd = open(path, O_WRONLY);
    MUST(pwrite(fd, &byte, 1, (off_t)pm_heap_offset(p)) == 1);
    close(fd);
}

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

// Punches all of heap.0 away, as the owner may do.
static void punch_file(void) {
    char path[160];
    struct stat st;
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    int fd = open(path, O_WRONLY);
    MUST(fstat(fd, &st) == 0 &&
         fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, st.st_size) == 0);
    close(fd);
}

// Makes a private copy of every page while the file still holds its contents.
static void copy_runs(void) {
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    for (unsigned i = 0; i < count; i++)
        for (uint64_t at = 0; at < run[i].len; at += PM_PAGE_SIZE)
            pm_os_copy_page(pm_heap_at(run[i].offset + at));
}

static void test_contents(void) {
    start();
    unsigned char *block[200];
    for (int i = 0; i < 200; i++) {
        block[i] = (unsigned char *)take(1 + (uint64_t)i % 40);
        memset(block[i], 1 + i, PM_PAGE_SIZE);
    }
    for (int i = 0; i < 200; i += 3)
        give(block[i]);
    CHECK(pm_private_enter(false));
    CHECK(!pm_heap_on_media());
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    CHECK(count >= 60 && count <= 80); // neighbours share one run
    for (unsigned i = 1; i < count; i++)
        CHECK(run[i].offset > run[i - 1].offset + run[i - 1].len);
    for (int i = 0; i < 200; i++) {
        CHECK_EQ(*block[i], i % 3 ? 1 + i : 0);
        *block[i] = 100;
        CHECK_EQ(file_byte(block[i]), 1 + i);
    }
    others_store(block[1] + 1, 77); // this page has been copied by now
    CHECK_EQ(block[1][1], 2);
    others_store(block[0] + PM_PAGE_SIZE / 2, 77);
    CHECK_EQ(block[0][PM_PAGE_SIZE / 2], 0);
    copy_runs();
    punch_file();
    for (int i = 0; i < 200; i++)
        CHECK_EQ(block[i][PM_PAGE_SIZE - 1], i % 3 ? 1 + i : 0);
    CHECK(pm_shard_set_frontier(&pm_heap.shard[0], pm_heap.shard[0].frontier + 8 * MIB));
    memset(pm_heap_at(0), 5, pm_heap.shard[0].frontier);
}

static void test_space_given_back_and_taken_again(void) {
    start();
    char *kept = (char *)take(16), *gone = (char *)take(16);
    memset(kept, 1, 16 * PM_PAGE_SIZE);
    memset(gone, 2, 16 * PM_PAGE_SIZE);
    CHECK(pm_private_enter(false));
    give(gone); // none of its pages has been copied
    CHECK(pm_extent_purge(true));
    for (size_t i = 0; i < 16 * PM_PAGE_SIZE; i += 512)
        CHECK(kept[i] == 1 && gone[i] == 0);
    for (int i = 0; i < 100; i++) {
        char *p = (char *)take(512);
        CHECK(p[0] == 0 || p[0] == 3); // never what the file holds there
        memset(p, 3, 2 * MIB);
        if (i % 2)
            give(p);
    }
    CHECK_EQ(kept[16 * PM_PAGE_SIZE - 1], 1);
}

// The block in it is freed, but another thread may hand the extent out again without a lock, and
// store to it, before the mapping is replaced.
static void cached_extent(bool others) {
    start();
    char *kept = (char *)take(8), *cached = (char *)take(8), *last = (char *)take(8);
    memset(kept, 1, 8 * PM_PAGE_SIZE);
    memset(cached, 2, 8 * PM_PAGE_SIZE);
    memset(last, 3, 8 * PM_PAGE_SIZE);
    *pm_tag_at(cached) = PM_TAG_NONE;
    CHECK(pm_private_enter(others));
    for (size_t i = 0; i < 8 * PM_PAGE_SIZE; i += 512)
        CHECK(kept[i] == 1 && cached[i] == (others ? 2 : 0) && last[i] == 3);
}

// A thread that makes a group of extents holds no lock between taking and publishing them. Another
// thread may fork meanwhile.
static void test_a_group_goes_on_afterwards(void) {
    static const uint16_t pages[3] = {5, 6, 7};
    struct pm_error err;
    uint32_t index[4];
    pm_options_default();
    MUST(pm_option_set("PMALLOC_PERSIST", "page", &err) == PM_OK);
    fixture_new_heap();
    index[0] = pm_extent_take(4, 1);
    MUST(index[0] && pm_extent_take_more(index[0], pages, 3, 1, index + 1) == 3);
    struct pm_log_digest before = pm_log_digest(&pm_heap.shard[0]);
    CHECK(pm_private_enter(true));
    CHECK_EQ(pm_extent_publish_group(index, 4, false), 4);
    struct pm_log_digest after = pm_log_digest(&pm_heap.shard[0]);
    CHECK(before.entries == after.entries && before.sum == after.sum);
    pm_heap_release();
    index[0] = pm_extent_take(4, 1);
    CHECK_EQ(pm_extent_publish_group(index, 1, false), 1);
    memset(pm_extent_address(&pm_extents[index[0]]), 1, 4 * PM_PAGE_SIZE);
}

static void test_cached_extents_are_nobodys(void) { cached_extent(false); }
static void test_cached_extents_among_other_threads(void) { cached_extent(true); }

static void test_holes_of_lazy_extents(void) {
    start();
    char *sparse = (char *)take(64 * MIB >> PM_PAGE_SHIFT);
    for (size_t at = 0; at < 64 * MIB; at += 4 * MIB)
        sparse[at + 5 * PM_PAGE_SIZE] = 9;
    uint64_t before = fixture_blocks();
    CHECK(pm_private_enter(false));
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    CHECK_EQ(count, 16);
    for (unsigned i = 0; i < count; i++)
        CHECK_EQ(run[i].len, PM_PAGE_SIZE);
    others_store(sparse, 1);
    CHECK_EQ(sparse[0], 0);
    for (size_t at = 0; at < 64 * MIB; at += PM_PAGE_SIZE)
        CHECK_EQ(sparse[at], at % (4 * MIB) == 5 * PM_PAGE_SIZE ? 9 : 0);
    CHECK(fixture_blocks() <= before + PM_PAGE_SIZE); // reading holes took no space
}

static void test_nothing_is_copied(void) {
    start();
    char *p = (char *)take(512);
    for (int i = 0; i < 31; i++)
        memset(take(512), 1, 2 * MIB);
    memset(p, 4, 2 * MIB);
    long before = faults();
    CHECK(pm_private_enter(false));
    CHECK(faults() - before < 40);
    unsigned count;
    CHECK(pm_private_runs(&count)[0].len == 64 * MIB && count == 1);
    CHECK_EQ(p[MIB], 4);
}

// Another process maps heap.0 privately and pins it. The owner punches holes instead of truncating,
// because truncating would discard even the pages that were copied.
static void test_pinned_file_keeps_its_length(void) {
    start();
    char *p = (char *)take(512);
    memset(p, 1, 2 * MIB);
    uint64_t length = pm_heap.shard[0].frontier;
    int done[2], go[2];
    MUST(pipe(done) == 0 && pipe(go) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte = !pm_private_enter(false);
        copy_runs();
        pm_heap_release();
        MUST(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        _exit(p[0] != 1 || p[2 * MIB - 1] != 1);
    }
    char byte = 1;
    MUST(read(done[0], &byte, 1) == 1 && byte == 0);
    give(p);
    CHECK(pm_extent_purge(true));
    CHECK_EQ(pm_heap.shard[0].frontier, length);
    CHECK_EQ(fixture_blocks(), 0);
    int status = 1;
    MUST(write(go[1], &byte, 1) == 1 && waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    p = (char *)take(16);
    CHECK_EQ(*p, 0);
    give(p);
    CHECK(pm_extent_purge(true));
    CHECK_EQ(pm_heap.shard[0].frontier, 0);
}

// Every second page is in use. That makes more pieces than private memory may have mappings, so all
// are copied.
static void test_too_many_runs_are_copied(void) {
    start();
    const size_t blocks = 2 * PM_PRIVATE_RUNS_MAX + 10;
    char **block = malloc(blocks * sizeof *block);
    for (size_t i = 0; i < blocks; i++)
        memset(block[i] = (char *)take(1), (int)(1 + i % 100), PM_PAGE_SIZE);
    for (size_t i = 1; i < blocks; i += 2)
        give(block[i]);
    CHECK(pm_private_enter(false));
    unsigned count;
    pm_private_runs(&count);
    CHECK_EQ(count, 0);
    punch_file();
    for (size_t i = 0; i < blocks; i++)
        CHECK_EQ(*block[i], i % 2 ? 0 : 1 + i % 100);
    free(block);
}

// The program has closed the descriptors, and the path leads nowhere, as after chroot. What is in
// use is copied from the mapping.
static void test_file_out_of_reach_is_copied(void) {
    start();
    char *p = (char *)take(100), *q = (char *)take(100);
    memset(p, 6, 100 * PM_PAGE_SIZE);
    memset(q, 7, 100 * PM_PAGE_SIZE);
    give(p);
    close(pm_heap.shard[0].data.fd);
    strcpy(pm_heap.dir, "/nowhere");
    CHECK(pm_private_enter(false));
    unsigned count;
    pm_private_runs(&count);
    CHECK_EQ(count, 0);
    CHECK(p[0] == 0 && q[0] == 7 && q[100 * PM_PAGE_SIZE - 1] == 7);
    q[0] = 8;
    CHECK_EQ(file_byte(q), 7);
}

// ---- at the end of the program ------------------------------------------------------------------

// Parts the process from the heap, as the end of the program does. See pm_private_part().
static bool part(bool tables_whole, bool alone) {
    bool known = tables_whole && pm_private_find(false);
    pm_heap_become(PM_HEAP_PARTED);
    bool good = pm_private_part(known, tables_whole, alone);
    if (!good)
        pm_heap_become(PM_HEAP_SHARED);
    return good;
}

// After that, stores stay in this process, what was free reads as zero, and memory can be taken
// as before.
static void check_parted(char *kept, char *gone) {
    CHECK(!pm_heap_on_media());
    for (size_t i = 0; i < 16 * PM_PAGE_SIZE; i += 512)
        CHECK(kept[i] == 1);
    if (gone)
        CHECK_EQ(gone[0], 0);
    kept[0] = 9;
    CHECK_EQ(file_byte(kept), 1);
    char *p = (char *)take(512);
    memset(p, 3, 2 * MIB);
    CHECK_EQ(kept[PM_PAGE_SIZE], 1);
}

static char *two_blocks(char **gone) {
    start();
    char *kept = (char *)take(16);
    *gone = (char *)take(16);
    char *after = (char *)take(16);
    memset(kept, 1, 16 * PM_PAGE_SIZE);
    memset(*gone, 2, 16 * PM_PAGE_SIZE);
    memset(after, 1, 16 * PM_PAGE_SIZE);
    give(*gone);
    return kept;
}

static void test_parting(void) {
    char *gone, *kept = two_blocks(&gone);
    CHECK(part(true, false));
    check_parted(kept, gone);
    unsigned count;
    pm_private_runs(&count);
    CHECK_EQ(count, 2);
}

// Parting comes in the middle of an operation, so it must not look at the tables.
static void test_parting_with_torn_tables(void) {
    char *gone, *kept = two_blocks(&gone);
    *pm_page_extent(0) = 12345;
    *pm_page_extent(pm_heap_offset(kept) >> PM_PAGE_SHIFT) = 12345;
    CHECK(part(false, false));
    *(char *)pm_heap_at(pm_heap.shard[0].frontier) =
        1; // the operation may just have taken memory there
    CHECK_EQ(kept[5], 1);
    kept[5] = 9;
    CHECK_EQ(file_byte(kept + 5), 1);
    unsigned count;
    CHECK_EQ(pm_private_runs(&count)[0].len, pm_heap.shard[0].frontier);
    CHECK_EQ(count, 1);
}

static void set_limit(int resource, rlim_t value) {
    struct rlimit limit;
    MUST(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = value < limit.rlim_max ? value : limit.rlim_max;
    MUST(setrlimit(resource, &limit) == 0);
}

// Parting succeeds without another descriptor and without more address space.
static void test_parting_takes_nothing(void) {
    char *gone, *kept = two_blocks(&gone);
    long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    MUST(file && fscanf(file, "%ld", &pages) == 1);
    fclose(file);
    set_limit(RLIMIT_NOFILE, 0);
    set_limit(RLIMIT_AS, (rlim_t)pages * PM_PAGE_SIZE);
    CHECK(part(true, false));
    set_limit(RLIMIT_NOFILE, 1000);
    set_limit(RLIMIT_AS, RLIM_INFINITY);
    check_parted(kept, gone);
}

static void test_parting_from_a_file_out_of_reach(void) {
    char *gone, *kept = two_blocks(&gone);
    close(pm_heap.shard[0].data.fd);
    strcpy(pm_heap.dir, "/nowhere");
    CHECK(!part(false, false));
    CHECK(pm_heap_on_media());
    kept[1] = 1;
    CHECK(part(true, false));
    check_parted(kept, gone);
}

static void test_parting_that_fails_changes_nothing(void) {
    char *gone, *kept = two_blocks(&gone);
    set_limit(RLIMIT_DATA, 1);
    CHECK(!part(true, false));
    CHECK(pm_heap_on_media());
    kept[0] = 4;
    CHECK_EQ(file_byte(kept), 4);
    CHECK(take(16) != NULL);
}

// A thrifty parting makes pieces writable as they are stored to. So it succeeds with less memory
// than the heap has.
static void test_thrifty_parting(void) {
    char *gone, *kept = two_blocks(&gone);
    char *big = (char *)take(4096);
    memset(big, 5, 16 * MIB);
    long pages[6];
    FILE *file = fopen("/proc/self/statm", "r");
    for (int i = 0; i < 6; i++)
        MUST(file && fscanf(file, "%ld", &pages[i]) == 1);
    fclose(file);
    set_limit(RLIMIT_DATA, 1);
    CHECK(!part(true, true));
    CHECK(pm_heap_on_media());
    kept[1] = 1;
    set_limit(RLIMIT_DATA, (rlim_t)pages[5] * PM_PAGE_SIZE + 2 * MIB);
    CHECK(part(true, true));
    CHECK(!pm_heap_on_media());
    kept[0] = big[9 * MIB] = 9;
    CHECK(file_byte(kept) == 1 && file_byte(big + 9 * MIB) == 5);
    CHECK(kept[1] == 1 && kept[0] == 9 && big[9 * MIB] == 9 && big[9 * MIB + 1] == 5);
}

// While the heap is held nobody can store to it; afterwards everybody can.
static void test_hold(void) {
    char *gone, *kept = two_blocks(&gone);
    int sink[2];
    MUST(pipe(sink) == 0 && write(sink[1], "xy", 2) == 2);
    CHECK(pm_private_hold(true));
    CHECK(read(sink[0], kept, 1) < 0 && errno == EFAULT);
    CHECK(pm_private_hold(false));
    CHECK(read(sink[0], kept, 1) == 1);
    CHECK(file_byte(kept) == 'x' || file_byte(kept) == 'y');
}

int main(void) {
    RUN_CHILD(contents);
    RUN_CHILD(space_given_back_and_taken_again);
    RUN_CHILD(a_group_goes_on_afterwards);
    RUN_CHILD(cached_extents_are_nobodys);
    RUN_CHILD(cached_extents_among_other_threads);
    RUN_CHILD(holes_of_lazy_extents);
    RUN_CHILD(nothing_is_copied);
    RUN_CHILD(pinned_file_keeps_its_length);
    RUN_CHILD(too_many_runs_are_copied);
    RUN_CHILD(file_out_of_reach_is_copied);
    RUN_CHILD(parting);
    RUN_CHILD(parting_with_torn_tables);
    RUN_CHILD(parting_takes_nothing);
    RUN_CHILD(parting_from_a_file_out_of_reach);
    RUN_CHILD(parting_that_fails_changes_nothing);
    if (!ASAN) // which from gcc 14 on maps shadow for each mapping, and ends where it cannot
        RUN_CHILD(thrifty_parting);
    RUN_CHILD(hold);
    return CHECK_DONE();
}
