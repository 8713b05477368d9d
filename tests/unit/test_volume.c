// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Heaps in several directories: which name a text gives first, what an interrupted making leaves,
// and removal, which leaves nothing of the heap and everything of others.
#include "media/backing/volume.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "heap_fixture.h"
#include "media/backing/range.h"
#include "media/open/heap_dir.h"
#include "media/open/shard_make.h"

static struct pm_error err;
static char other[160], both[400], path[240];

static const char *at(const char *dir, const char *name) {
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static bool there(const char *dir, const char *name) {
    struct stat st;
    return lstat(at(dir, name), &st) == 0;
}

static void two_directories(void) {
    snprintf(other, sizeof other, "%s.other", fixture_dir);
    snprintf(both, sizeof both, "%s:%s", fixture_dir, other);
    pm_options_default();
    MUST(pm_option_set("PMALLOC_LIMIT", "4T", &err) == PM_OK);
    MUST(pm_heap_choose_range(1));
}

static void made(void) {
    two_directories();
    CHECK_EQ(pm_heap_open(both, PM_OPEN_CREATE, false, &err), PM_OK);
    CHECK_EQ(pm_heap.volumes, 2);
    CHECK_EQ(pm_heap_map(&err), PM_OK);
    CHECK(pm_shard_make(0) && pm_shard_make(0) && pm_shard_make(0));
    CHECK(there(other, "volume") && there(fixture_dir, "volume.1"));
    CHECK(there(other, "heap.1") && there(fixture_dir, "heap.2") && there(other, "heap.3"));
    CHECK_EQ(pm_heap.shard[3].data.size, 0);
}

static void test_first_name(void) {
    CHECK_EQ(pm_volume_first("/a/b"), 4);
    CHECK_EQ(pm_volume_first("/a/b:/c"), 4);
    CHECK_EQ(pm_volume_count("/a/b"), 1);
    CHECK_EQ(pm_volume_count("/a/b:/c:/d"), 3);
    // A directory whose own name has a colon, as heaps of older versions may.
    char name[160];
    snprintf(name, sizeof name, "%s:x", fixture_dir);
    CHECK_EQ(pm_volume_count(name), 2);
    MUST(mkdir(name, 0700) == 0);
    CHECK_EQ(pm_volume_count(name), 1);
    CHECK_EQ(pm_volume_first(name), strlen(name));
    CHECK_EQ(pm_heap_open(name, PM_OPEN_CREATE, false, &err), PM_OK);
    CHECK(there(name, "superblock"));
    pm_heap_remove();
    CHECK(!there(name, "."));
}

static void test_removed_whole(void) {
    made();
    pm_heap_remove();
    CHECK(!there(other, ".") && !there(fixture_dir, "."));
}

// A link that leads to another heap's directory, or to any other.
static void test_strangers_stay(void) {
    made();
    char volume[64], changed[64];
    int fd = open(at(other, "volume"), O_RDWR);
    MUST(read(fd, volume, sizeof volume) == sizeof volume);
    memcpy(changed, volume, sizeof volume);
    changed[9] ^= 1;
    MUST(pwrite(fd, changed, sizeof changed, 0) == sizeof changed);
    int dir = open(fixture_dir, O_RDONLY | O_DIRECTORY);
    CHECK(pm_dir_empty(dir));
    CHECK(there(other, "heap.1") && there(other, "volume"));
    CHECK(!there(fixture_dir, "volume.1") && !there(fixture_dir, "superblock"));
    close(dir);
    close(fd);
}

static void test_interrupted_removal(void) {
    made();
    pm_heap_release();
    char from[240];
    strcpy(from, at(fixture_dir, "superblock"));
    MUST(rename(from, at(fixture_dir, "superblock.new")) == 0);
    CHECK_EQ(pm_heap_open(fixture_dir, PM_OPEN_CREATE, false, &err), PM_OK);
    CHECK(pm_heap.created && pm_heap.volumes == 1 && pm_heap.shards == 1);
    CHECK(!there(other, ".") && !there(fixture_dir, "volume.1"));
}

// The file `volume` is there, and the link is not yet.
static void test_interrupted_making(void) {
    made();
    pm_heap_release();
    MUST(unlink(at(fixture_dir, "volume.1")) == 0);
    CHECK_EQ(pm_heap_open(fixture_dir, PM_OPEN_CREATE, false, &err), PM_DAMAGE);
    CHECK_HAS(err.text, "volume.1 is missing");
    CHECK_EQ(pm_heap_open(both, PM_OPEN_CREATE, false, &err), PM_OK);
    CHECK_EQ(pm_heap.shards, 4);
    CHECK(!strcmp(pm_heap.shard[1].data.name, "volume.1/heap.1"));
    pm_heap_release();
    CHECK(!strcmp(pm_heap.shard[1].data.name, "heap.1"));
}

int main(void) {
    RUN_CHILD(first_name);
    RUN_CHILD(removed_whole);
    RUN_CHILD(strangers_stay);
    RUN_CHILD(interrupted_removal);
    RUN_CHILD(interrupted_making);
    return CHECK_DONE();
}
