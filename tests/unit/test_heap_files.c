// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The table of the heap's files: each file in it is made, opened, copied and removed, and no other
// name appears.
#include "base/os_file.h"
#include "heap_fixture.h"
#include "media/open/heap_dir.h"
#include "state/heap_copy.h"

#define EACH(f)                                                                                    \
    const struct pm_heap_file *f = pm_heap_files;                                                  \
    f < pm_heap_files + PM_FIRST_FILES;                                                            \
    f++

static struct pm_error err;

static bool there(const char *dir, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%.15s", dir, name);
    return access(path, F_OK) == 0;
}

static bool known(const char *name, void *arg) {
    bool found = false;
    for (EACH(f))
        found |= strcmp(name, f->name) == 0 && f->held;
    CHECK(found);
    if (!found)
        printf("  %s is not in the table\n", name);
    ++*(unsigned *)arg;
    return true;
}

// Every file that is held, and nothing else.
static void check_whole(const char *dir) {
    unsigned names = 0, held = 0;
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && pm_os_each_name(fd, known, &names));
    close(fd);
    for (EACH(f)) {
        held += f->held;
        CHECK(there(dir, f->name) == f->held);
    }
    CHECK_EQ(names, held);
}

static void new_heap(void) {
    pm_options_default();
    fixture_new_heap();
}

static void test_made_and_opened(void) {
    new_heap();
    check_whole(fixture_dir);
    for (EACH(f)) {
        CHECK(f->held == (pm_heap_file(f)->fd >= 0));
        CHECK(!f->share || pm_heap_file(f)->reach == pm_shard_reach() / f->share);
        CHECK_STR(f->name, pm_heap_file(f)->name);
    }
    pm_heap_release();
    for (EACH(f))
        CHECK(pm_heap_file(f)->fd < 0 && pm_heap_file(f)->map == NULL);
}

// As it is when a heap has just been closed, and where an interruption left names that pass.
static void make_all_names(void) {
    for (EACH(f)) {
        char path[160];
        snprintf(path, sizeof path, "%s/%.15s", fixture_dir, f->name);
        int fd = open(path, O_WRONLY | O_CREAT, 0600);
        MUST(fd >= 0);
        close(fd);
    }
}

static void test_removed(void) {
    new_heap();
    make_all_names();
    pm_heap_remove();
    CHECK(access(fixture_dir, F_OK) != 0);
}

// What cannot be unlinked keeps the directory, and the mark says that it is no heap any more.
static void test_removed_in_part(void) {
    for (EACH(f)) {
        char path[160];
        if (pm_heap_file(f) == &pm_heap.super_file || pm_heap_file(f) == &pm_heap.new_super)
            continue;
        MUST(mkdir(fixture_dir, 0700) == 0);
        make_all_names();
        snprintf(path, sizeof path, "%s/%.15s", fixture_dir, f->name);
        MUST(unlink(path) == 0 && mkdir(path, 0700) == 0);
        int fd = open(fixture_dir, O_RDONLY | O_DIRECTORY);
        CHECK(!pm_dir_is_remnant(fd));
        pm_heap_remove_at(fd, fixture_dir);
        CHECK(pm_dir_is_remnant(fd));
        for (EACH(other))
            CHECK(there(fixture_dir, other->name) ==
                  (other == f || pm_heap_file(other) == &pm_heap.new_super));
        MUST(rmdir(path) == 0);
        pm_heap_remove_at(fd, fixture_dir);
        CHECK(access(fixture_dir, F_OK) != 0);
        close(fd);
    }
}

// Each of them alone is the leaving of an interrupted making: a heap is made there.
static void test_leavings(void) {
    pm_options_default();
    for (EACH(f)) {
        char path[160];
        if (pm_heap_file(f) == &pm_heap.super_file)
            continue;
        snprintf(path, sizeof path, "%s/%.15s", fixture_dir, f->name);
        MUST(mkdir(fixture_dir, 0700) == 0);
        close(open(path, O_WRONLY | O_CREAT, 0600));
        CHECK_EQ(pm_heap_open(fixture_dir, PM_OPEN_CREATE, false, &err), PM_OK);
        CHECK(pm_heap.created);
        pm_heap_remove();
        pm_heap_release();
        CHECK(access(fixture_dir, F_OK) != 0);
    }
}

// A making that fails takes back whatever it has made, at each file.
static void test_unmade(void) {
    pm_options_default();
    for (EACH(f)) {
        char path[160];
        // Data without a superblock are taken for a heap that has lost it.
        const struct pm_file *file = pm_heap_file(f);
        if ((!f->empty && file != &pm_heap.new_super) || file == &pm_heap.shard[0].data)
            continue;
        snprintf(path, sizeof path, "%s/%.15s", fixture_dir, f->name);
        MUST(mkdir(fixture_dir, 0700) == 0 && mkdir(path, 0700) == 0);
        CHECK_EQ(pm_heap_open(fixture_dir, PM_OPEN_CREATE, false, &err), PM_OPERATIONAL);
        CHECK_HAS(err.text, f->name);
        MUST(rmdir(path) == 0);
        CHECK(rmdir(fixture_dir) == 0); // nothing else is in it
    }
}

static void test_copied(void) {
    char twin[128];
    struct stat st;
    new_heap();
    snprintf(twin, sizeof twin, "%s.%d", fixture_dir, (int)getpid());
    CHECK_EQ(pm_heap_copy_make(&err), PM_OK);
    check_whole(twin);
    for (EACH(f))
        if (f->held)
            CHECK(fstat(pm_heap_file(f)->fd, &st) == 0 && st.st_ino == pm_heap_file(f)->ino &&
                  pm_os_fd_at_path(pm_heap.dir_fd, twin));
    pm_heap_copy_part();
    pm_heap_remove();
    CHECK(access(twin, F_OK) != 0);
}

int main(void) {
    RUN_CHILD(made_and_opened);
    RUN_CHILD(removed);
    RUN_CHILD(removed_in_part);
    RUN_CHILD(leavings);
    RUN_CHILD(unmade);
    RUN_CHILD(copied);
    return CHECK_DONE();
}
