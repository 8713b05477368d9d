// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What tools do with heaps that they have not opened: they read copies of files, and remove a
// directory.
#include "booklog_model.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"

static char *copy; // a copy of one of the heap's files
static size_t copy_size;

static void copy_file(const char *name) {
    char path[160];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", fixture_dir, name);
    int fd = open(path, O_RDONLY);
    MUST(fd >= 0 && fstat(fd, &st) == 0);
    copy = malloc((size_t)st.st_size);
    copy_size = (size_t)st.st_size;
    MUST(copy && read(fd, copy, copy_size) == st.st_size);
    close(fd);
}

static struct pm_log_stats stats; // of the copy

static int read_copy(size_t size) {
    struct pm_error err = {0};
    seen_reset();
    int status = pm_log_read(copy, size, see, &stats, &err);
    CHECK_EQ(status, err.status);
    return status;
}

static void test_a_copy_of_the_log(void) {
    log_new();
    for (int i = 0; i < 4000; i++)
        step(700);
    copy_file("booklog.0");
    CHECK_EQ(read_copy(copy_size), PM_OK);
    compare();
    CHECK_EQ(stats.live, model_live);
    // Reading the copy has not touched the log of the open heap.
    for (int i = 0; i < 500; i++)
        step(700);
    CHECK_EQ(pm_log_stats(&pm_heap.shard[0]).live, model_live);
    check_model_matches();
    copy_file("booklog.0");
    pm_heap_release();
    CHECK_EQ(read_copy(copy_size), PM_OK);
    compare();
    CHECK_EQ(stats.live, model_live);
    CHECK_EQ(read_copy(100), PM_DAMAGE);
    CHECK_EQ(read_copy(copy_size / 2), PM_DAMAGE);
    copy[sizeof(struct pm_log_header) + 20] ^= 1; // the first chunk's first entry
    CHECK_EQ(read_copy(copy_size), PM_DAMAGE);
    copy[sizeof(struct pm_log_header) + 20] ^= 1;
    CHECK_EQ(read_copy(copy_size), PM_OK);
    compare();
}

static void test_a_copy_of_the_superblock(void) {
    struct pm_error err;
    log_new();
    pm_heap.super->slots.slot[7] = pm_slot_word(7, PM_HEAP_BASE);
    CHECK_EQ(pm_heap_root_count(), 1);
    copy_file("superblock");
    pm_heap_release();
    struct pm_super_file *file = (struct pm_super_file *)copy;
    CHECK_EQ(pm_superblock_check(&file->super, "/some/heap", &err), PM_OK);
    CHECK_EQ(pm_super_root_count(file), 1);
    file->super.uuid[3] ^= 1;
    CHECK_EQ(pm_superblock_check(&file->super, "/some/heap", &err), PM_DAMAGE);
    CHECK_HAS(err.text, "/some/heap/superblock: checksum is wrong");
}

static void test_removal_by_directory(void) {
    char foreign[160];
    log_new();
    pm_heap_release();
    snprintf(foreign, sizeof foreign, "%s/notes", fixture_dir);
    int fd = open(fixture_dir, O_RDONLY | O_DIRECTORY);
    int other = open(foreign, O_WRONLY | O_CREAT, 0600);
    MUST(fd >= 0 && other >= 0);
    pm_heap_remove_at(fd, fixture_dir);
    // a file that is not the heap's stays, and so does the directory
    CHECK(faccessat(fd, "notes", F_OK, 0) == 0);
    CHECK(faccessat(fd, "superblock", F_OK, 0) != 0 && faccessat(fd, "heap.0", F_OK, 0) != 0);
    CHECK_EQ(unlink(foreign), 0);
    pm_heap_remove_at(fd, fixture_dir);
    CHECK(access(fixture_dir, F_OK) != 0);
    CHECK_EQ(pm_heap.dir_fd, -1);
}

int main(void) {
    RUN_CHILD(a_copy_of_the_log);
    RUN_CHILD(a_copy_of_the_superblock);
    RUN_CHILD(removal_by_directory);
    return CHECK_DONE();
}
