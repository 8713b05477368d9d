// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Private memory in place of the shared heap: what is in use keeps its contents at its addresses, nothing of it
// reaches the file any more, and what was free or a hole does not show the file.
#include "private.h"

#include <sys/resource.h>

#include "heap_fixture.h"

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

// The file's byte at an address, and a store to it, behind the process's back.
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

// All of it is punched away, as its owner may do.
static void punch_file(void) {
    char path[160];
    struct stat st;
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    int fd = open(path, O_WRONLY);
    MUST(fstat(fd, &st) == 0 &&
         fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, st.st_size) == 0);
    close(fd);
}

// Stores to every page, as long as the file is there.
static void copy_runs(void) {
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    for (unsigned i = 0; i < count; i++)
        for (uint64_t at = 0; at < run[i].len; at += PM_PAGE_SIZE)
            pm_private_copy_page(pm_heap_at(run[i].offset + at));
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
    CHECK(pm_private_enter());
    CHECK(!pm_heap.persistent);
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    CHECK(count >= 60 && count <= 70); // neighbours in one
    for (unsigned i = 1; i < count; i++)
        CHECK(run[i].offset > run[i - 1].offset + run[i - 1].len);
    for (int i = 0; i < 200; i++) {
        CHECK_EQ(*block[i], i % 3 ? 1 + i : 0);
        *block[i] = 100;
        CHECK_EQ(file_byte(block[i]), 1 + i);
    }
    others_store(block[1] + 1, 77); // on a page copied by now
    CHECK_EQ(block[1][1], 2);
    others_store(block[0] + PM_PAGE_SIZE / 2, 77);
    CHECK_EQ(block[0][PM_PAGE_SIZE / 2], 0);
    copy_runs();
    punch_file();
    for (int i = 0; i < 200; i++)
        CHECK_EQ(block[i][PM_PAGE_SIZE - 1], i % 3 ? 1 + i : 0);
    CHECK(pm_heap_set_frontier(pm_heap.frontier + 8 * MIB));
    memset(pm_heap_at(0), 5, pm_heap.frontier);
}

static void test_space_given_back_and_taken_again(void) {
    start();
    char *kept = (char *)take(16), *gone = (char *)take(16);
    memset(kept, 1, 16 * PM_PAGE_SIZE);
    memset(gone, 2, 16 * PM_PAGE_SIZE);
    CHECK(pm_private_enter());
    give(gone); // no page of it copied
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

static void test_holes_of_lazy_extents(void) {
    start();
    char *sparse = (char *)take(64 * MIB >> PM_PAGE_SHIFT);
    for (size_t at = 0; at < 64 * MIB; at += 4 * MIB)
        sparse[at + 5 * PM_PAGE_SIZE] = 9;
    uint64_t before = fixture_blocks();
    CHECK(pm_private_enter());
    unsigned count;
    const struct pm_private_run *run = pm_private_runs(&count);
    CHECK_EQ(count, 16);
    for (unsigned i = 0; i < count; i++)
        CHECK_EQ(run[i].len, PM_PAGE_SIZE);
    others_store(sparse, 1);
    CHECK_EQ(sparse[0], 0);
    for (size_t at = 0; at < 64 * MIB; at += PM_PAGE_SIZE)
        CHECK_EQ(sparse[at], at % (4 * MIB) == 5 * PM_PAGE_SIZE ? 9 : 0);
    CHECK(fixture_blocks() <= before + PM_PAGE_SIZE); // looking at holes took no space
}

static void test_nothing_is_copied(void) {
    start();
    char *p = (char *)take(512);
    for (int i = 0; i < 31; i++)
        memset(take(512), 1, 2 * MIB);
    memset(p, 4, 2 * MIB);
    long before = faults();
    CHECK(pm_private_enter());
    CHECK(faults() - before < 40);
    unsigned count;
    CHECK(pm_private_runs(&count)[0].len == 64 * MIB && count == 1);
    CHECK_EQ(p[MIB], 4);
}

// Somebody maps the file privately: the owner does not cut it shorter, which would take even copied pages away, but
// gives its space back.
static void test_pinned_file_keeps_its_length(void) {
    start();
    char *p = (char *)take(512);
    memset(p, 1, 2 * MIB);
    uint64_t length = pm_heap.frontier;
    int done[2], go[2];
    MUST(pipe(done) == 0 && pipe(go) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte = !pm_private_enter();
        copy_runs();
        pm_heap_release();
        MUST(write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1);
        _exit(p[0] != 1 || p[2 * MIB - 1] != 1);
    }
    char byte = 1;
    MUST(read(done[0], &byte, 1) == 1 && byte == 0);
    give(p);
    CHECK(pm_extent_purge(true));
    CHECK_EQ(pm_heap.frontier, length);
    CHECK_EQ(fixture_blocks(), 0);
    int status = 1;
    MUST(write(go[1], &byte, 1) == 1 && waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    p = (char *)take(16);
    CHECK_EQ(*p, 0);
    give(p);
    CHECK(pm_extent_purge(true));
    CHECK_EQ(pm_heap.frontier, 0);
}

// Every second page in use: more pieces than mappings are allowed for.
static void test_too_many_runs_are_copied(void) {
    start();
    const size_t blocks = 2 * PM_PRIVATE_RUNS_MAX + 10;
    char **block = malloc(blocks * sizeof *block);
    for (size_t i = 0; i < blocks; i++)
        memset(block[i] = (char *)take(1), (int)(1 + i % 100), PM_PAGE_SIZE);
    for (size_t i = 1; i < blocks; i += 2)
        give(block[i]);
    CHECK(pm_private_enter());
    unsigned count;
    pm_private_runs(&count);
    CHECK_EQ(count, 0);
    punch_file();
    for (size_t i = 0; i < blocks; i++)
        CHECK_EQ(*block[i], i % 2 ? 0 : 1 + i % 100);
    free(block);
}

// The descriptors are closed, and the path leads nowhere (chroot): the mapping itself is still there.
static void test_file_out_of_reach_is_copied(void) {
    start();
    char *p = (char *)take(100), *q = (char *)take(100);
    memset(p, 6, 100 * PM_PAGE_SIZE);
    memset(q, 7, 100 * PM_PAGE_SIZE);
    give(p);
    close(pm_heap.data.fd);
    strcpy(pm_heap.dir, "/nowhere");
    CHECK(pm_private_enter());
    unsigned count;
    pm_private_runs(&count);
    CHECK_EQ(count, 0);
    CHECK(p[0] == 0 && q[0] == 7 && q[100 * PM_PAGE_SIZE - 1] == 7);
    q[0] = 8;
    CHECK_EQ(file_byte(q), 7);
}

int main(void) {
    RUN_CHILD(contents);
    RUN_CHILD(space_given_back_and_taken_again);
    RUN_CHILD(holes_of_lazy_extents);
    RUN_CHILD(nothing_is_copied);
    RUN_CHILD(pinned_file_keeps_its_length);
    RUN_CHILD(too_many_runs_are_copied);
    RUN_CHILD(file_out_of_reach_is_copied);
    return CHECK_DONE();
}
