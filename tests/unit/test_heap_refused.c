// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Every heap directory or file that is not right is refused, and nothing on disk has changed then.
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>

#include "heap_opening.h"

static void test_missing(void) {
    pm_options_default();
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "No such file");
    refused(PM_OPEN_READONLY, PM_OPERATIONAL, "No such file");
    char kept[sizeof fixture_dir];
    memcpy(kept, fixture_dir, sizeof kept);
    snprintf(fixture_dir, sizeof fixture_dir, "%s/a/b", fixture_root);
    refused(PM_OPEN_CREATE, PM_OPERATIONAL, "cannot make");
    memcpy(fixture_dir, kept, sizeof kept);
    char long_path[5000];
    memset(long_path, 'x', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    CHECK_EQ(pm_heap_open(long_path, PM_OPEN_CREATE, false, &err), PM_OPERATIONAL);
    CHECK_HAS(err.text, "too long");
}

static void test_foreign_directory(void) {
    pm_options_default();
    MUST(mkdir(fixture_dir, 0700) == 0);
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "not a PMAlloc heap");
    char path[160];
    snprintf(path, sizeof path, "%s/precious.txt", fixture_dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    refused(PM_OPEN_CREATE, PM_OPERATIONAL, "precious.txt");
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "not a PMAlloc heap");
    unlink(path);
    // An empty directory will do, and so will the leavings of an interrupted making.
    snprintf(path, sizeof path, "%s/superblock.new", fixture_dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    CHECK_EQ(open_it(PM_OPEN_CREATE), PM_OK);
    CHECK(access(path, F_OK) != 0);
}

// What an interrupted making or removal left, and nothing that may hold data.
static void test_dead(void) {
    char path[160];
    make_heap();
    CHECK_EQ(open_it(PM_OPEN_DEAD), PM_OK);
    pm_heap_release();
    snprintf(path, sizeof path, "%s/letter", fixture_dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    char super[160];
    snprintf(super, sizeof super, "%s/superblock", fixture_dir);
    MUST(unlink(super) == 0);
    refused(PM_OPEN_DEAD, PM_OPERATIONAL, "letter");
    unlink(path);
    poke("heap.0", 0, "x", 1);
    refused(PM_OPEN_DEAD, PM_DAMAGE, "superblock is missing");
    cut("heap.0", 0);
    CHECK_EQ(open_it(PM_OPEN_DEAD), PM_OPERATIONAL);
    CHECK(access(fixture_dir, F_OK) != 0 && pm_heap.dir_fd < 0);
    refused(PM_OPEN_DEAD, PM_OPERATIONAL, "No such file");
    MUST(mkdir(fixture_dir, 0700) == 0);
    int fd = open(fixture_dir, O_RDONLY | O_DIRECTORY);
    MUST(flock(fd, LOCK_EX) == 0); // about to be made a heap
    refused(PM_OPEN_DEAD, PM_OPERATIONAL, "in use");
    close(fd);
    CHECK_EQ(open_it(PM_OPEN_DEAD), PM_OPERATIONAL);
    CHECK(access(fixture_dir, F_OK) != 0);
}

static _Atomic bool enough;

// With pauses of changing length. A kernel that hands the directory's lock from one waiter to the
// next would otherwise let every removal follow the making at once, a thousand times in a row.
static void *remove_again_and_again(void *arg) {
    for (unsigned round = 0; !enough; round++) {
        rmdir(fixture_dir);
        for (volatile unsigned pause = (round * 2654435761u) >> 17; pause; pause--) {
        }
    }
    return arg;
}

// Another process removes the directory, empty as yet, between our making and our opening it.
static void test_removed_meanwhile(void) {
    pthread_t remover;
    pm_options_default();
    MUST(pthread_create(&remover, NULL, remove_again_and_again, NULL) == 0);
    for (int i = 0; i < 3000; i++) {
        // Without the lock, it may also go while its files are made.
        if (open_it(PM_OPEN_CREATE) == PM_OK) {
            pm_heap_remove();
            pm_heap_release();
        } else {
            CHECK(strstr(err.text, "cannot open the heap directory") == NULL);
        }
    }
    enough = true;
    pthread_join(remover, NULL);
}

static void test_not_a_directory(void) {
    pm_options_default();
    close(open(fixture_dir, O_CREAT | O_WRONLY, 0600));
    refused(PM_OPEN_CREATE, PM_OPERATIONAL, "Not a directory");
}

static void test_symbolic_links(void) {
    make_heap();
    char real[128], path[160], target[160];
    snprintf(real, sizeof real, "%s/real", fixture_root);
    MUST(rename(fixture_dir, real) == 0 && symlink(real, fixture_dir) == 0);
    refused(PM_OPEN_CREATE, PM_OPERATIONAL, "cannot open the heap directory");
    MUST(unlink(fixture_dir) == 0 && rename(real, fixture_dir) == 0);
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    snprintf(target, sizeof target, "%s/elsewhere", fixture_root);
    MUST(rename(path, target) == 0 && symlink(target, path) == 0);
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "heap.0");
}

static void test_modes(void) {
    make_heap();
    chmod(fixture_dir, 0770);
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "chmod 700");
    chmod(fixture_dir, 0702);
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "mode 702");
    chmod(fixture_dir, 0755);
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
}

static void test_another_user(void) {
    make_heap();
    if (geteuid() != 0) {
        printf("  skipped: needs root\n");
        return;
    }
    char path[160];
    snprintf(path, sizeof path, "%s/roots", fixture_dir);
    MUST(chown(path, 65534, 65534) == 0);
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "roots is not a plain file of user 0");
    MUST(chown(path, 0, 0) == 0 && chown(fixture_dir, 65534, 65534) == 0);
    refused(PM_OPEN_CREATE, PM_OPERATIONAL, "belongs to user 65534");
}

static void test_missing_and_short_files(void) {
    char path[160], aside[160];
    make_heap();
    for (size_t i = 0; i < PM_FIRST_FILES; i++) {
        if (!pm_heap_files[i].empty)
            continue;
        snprintf(path, sizeof path, "%s/%.15s", fixture_dir, pm_heap_files[i].name);
        snprintf(aside, sizeof aside, "%s/aside", fixture_root);
        MUST(rename(path, aside) == 0);
        refused(PM_OPEN_EXISTING, PM_DAMAGE, pm_heap_files[i].name);
        refused(PM_OPEN_CREATE, PM_DAMAGE, "is missing");
        MUST(rename(aside, path) == 0);
    }
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
    pm_heap_release();
    cut("booklog.0", 4095);
    refused(PM_OPEN_EXISTING, PM_DAMAGE, "booklog.0 has 4095 bytes");
    cut("booklog.0", 4096 + 512);
    refused(PM_OPEN_EXISTING, PM_DAMAGE, "booklog.0 has 4608 bytes");
    cut("booklog.0", 4096);
    cut("heap.0", 12345);
    refused(PM_OPEN_EXISTING, PM_DAMAGE, "heap.0 has 12345 bytes");
    cut("heap.0", 0);
    cut("superblock", 5000);
    refused(PM_OPEN_EXISTING, PM_DAMAGE, "superblock has 5000 bytes");
    cut("superblock", 0);
    refused(PM_OPEN_CREATE, PM_DAMAGE, "superblock has 0 bytes");
}

// Writes a changed superblock, with a right checksum where `seal`; all are refused for this reason.
static void with_super(struct pm_superblock super, bool seal, int status, const char *part) {
    struct pm_superblock good;
    char path[160];
    snprintf(path, sizeof path, "%s/superblock", fixture_dir);
    int fd = open(path, O_RDONLY);
    MUST(pread(fd, &good, sizeof good, 0) == (ssize_t)sizeof good);
    close(fd);
    if (seal)
        super.crc = pm_crc32c(0, &super, offsetof(struct pm_superblock, crc));
    poke("superblock", 0, &super, sizeof super);
    refused(PM_OPEN_CREATE, status, part);
    refused(PM_OPEN_READONLY, status, part);
    CHECK_EQ(err.why == PM_WHY_FOREIGN, status == PM_OPERATIONAL);
    poke("superblock", 0, &good, sizeof good);
}

static void test_superblock(void) {
    make_heap();
    MUST(open_it(PM_OPEN_READONLY) == PM_OK);
    const struct pm_superblock good = pm_heap.super->super;
    pm_heap_release();
    struct pm_superblock s = good;
    s.magic ^= 1;
    with_super(s, true, PM_DAMAGE, "is not PMAlloc's");
    s = good, s.uuid[3] ^= 1;
    with_super(s, false, PM_DAMAGE, "checksum");
    s = good, s.reserved[1000] ^= 1;
    with_super(s, false, PM_DAMAGE, "checksum");
    s = good, s.version = 2;
    with_super(s, false, PM_DAMAGE, "checksum");
    // Whole, but made otherwise.
    with_super(s, true, PM_OPERATIONAL, "its format version is 0x2, this one has 0x1; it is not");
    s = good, s.incompat = 1ull << 40 | PM_INCOMPAT_KNOWN;
    with_super(s, true, PM_OPERATIONAL, "its set of features is 0x100000001dd, this one has 0x1dd");
    s = good, s.incompat = 32; // it stood for something once
    with_super(s, true, PM_OPERATIONAL, "its set of features is 0x20, this one has 0;");
    s = good, s.base += 1 << 20;
    with_super(s, true, PM_OPERATIONAL, "its base address is 0x400000100000");
    s = good, s.range *= 2;
    with_super(s, true, PM_OPERATIONAL, "its range is 2 TiB, this one has 1 TiB");
    s = good, s.page_size = 65536;
    with_super(s, true, PM_OPERATIONAL, "its page size is 64 KiB, this one has 4 KiB");
    s = good, s.node_count = 2;
    with_super(s, true, PM_OPERATIONAL, "its number of nodes is 0x2");
    CHECK_HAS(err.text, "not damaged, and nothing was changed");
    s = good, s.compat = 8; // may be unknown
    s.crc = pm_crc32c(0, &s, offsetof(struct pm_superblock, crc));
    poke("superblock", 0, &s, sizeof s);
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
    pm_heap_release();
    uint64_t state = PM_STATE_CLEAN ^ 0x20;
    poke("superblock", 4096, &state, sizeof state);
    refused(PM_OPEN_EXISTING, PM_DAMAGE, "neither clean nor dirty");
}

// What decides whether the heap has roots: any change of a bit or two, and zeroes, are noticed.
static void test_root_words(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    pm_heap.super->slots.slot[7] = pm_slot_word(7, PM_HEAP_BASE + 4096);
    CHECK_EQ(pm_heap_slot(7), PM_HEAP_BASE + 4096);
    const uint64_t epoch = pm_heap.super->state.root_epoch, slot = pm_heap.super->slots.slot[7];
    pm_heap_release();
    for (unsigned a = 0; a < 64; a++)
        for (unsigned b = a; b < 64; b++) {
            CHECK(!pm_sealed(epoch ^ (1ull << a | 1ull << b), PM_SALT_ROOT_EPOCH));
            uint64_t spoilt = slot ^ (1ull << a | 1ull << b);
            CHECK(spoilt != pm_slot_word(7, spoilt & PM_SLOT_MAX));
        }
    const uint64_t zero = 0;
    poke("superblock", 4096 + 8, &zero, 8);
    refused(PM_OPEN_CREATE, PM_DAMAGE, "root table's epoch");
    poke("superblock", 4096 + 8, &epoch, 8);
    poke("superblock", 8192 + 7 * 8, &zero, 8);
    refused(PM_OPEN_CREATE, PM_DAMAGE, "root slot 7");
    poke("superblock", 8192 + 8 * 8, &slot, 8); // another slot's word
    poke("superblock", 8192 + 7 * 8, &slot, 8);
    refused(PM_OPEN_CREATE, PM_DAMAGE, "root slot 8");
}

int main(void) {
    RUN_CHILD(missing);
    RUN_CHILD(foreign_directory);
    RUN_CHILD(dead);
    RUN_CHILD(removed_meanwhile);
    RUN_CHILD(not_a_directory);
    RUN_CHILD(symbolic_links);
    RUN_CHILD(modes);
    RUN_CHILD(another_user);
    RUN_CHILD(missing_and_short_files);
    RUN_CHILD(superblock);
    RUN_CHILD(root_words);
    return CHECK_DONE();
}
