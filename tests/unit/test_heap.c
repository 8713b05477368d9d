// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The heap directory: making and reopening it, its lock and state, the frontier; every directory or file
// that is not right is refused, and nothing on disk has changed then.
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/file.h>

#include "crc.h"
#include "heap_fixture.h"

static struct pm_error err;

static int open_it(enum pm_open_mode mode) {
    err = (struct pm_error){0};
    return pm_heap_open(fixture_dir, mode, false, &err);
}

static void make_heap(void) {
    pm_options_default();
    MUST(open_it(PM_OPEN_CREATE) == PM_OK);
    CHECK(pm_heap.created);
    pm_heap_release();
}

// ---- a fingerprint of everything under fixture_root --------------------------------------------------

static uint64_t print_sum;

static int print_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)flag, (void)ftw;
    uint32_t sum = pm_crc32c(0, path, strlen(path));
    uint64_t meta[] = {st->st_mode, st->st_ino, st->st_uid, (uint64_t)st->st_mtim.tv_nsec};
    sum = pm_crc32c(sum, meta, sizeof meta);
    if (S_ISREG(st->st_mode)) {
        char buffer[8192];
        int fd = open(path, O_RDONLY);
        ssize_t got;
        while (fd >= 0 && (got = read(fd, buffer, sizeof buffer)) > 0)
            sum = pm_crc32c(sum, buffer, (size_t)got);
        close(fd);
    }
    print_sum += (uint64_t)sum << 7 ^ (uint64_t)st->st_size;
    return 0;
}

static uint64_t fingerprint(void) {
    print_sum = 0;
    nftw(fixture_root, print_one, 16, FTW_PHYS);
    return print_sum;
}

// Opening fails with this status and text, holds nothing afterwards and has changed nothing.
static void refused(enum pm_open_mode mode, int status, const char *part) {
    uint64_t before = fingerprint();
    CHECK_EQ(open_it(mode), status);
    CHECK_EQ(err.status, status);
    CHECK_HAS(err.text, part);
    CHECK_HAS(err.text, fixture_dir);
    CHECK(strchr(err.text, '\n') == NULL);
    CHECK_EQ(fingerprint(), before);
    CHECK(pm_heap.dir_fd < 0 && pm_heap.super == NULL && pm_heap.log.fd < 0 && pm_heap.data.fd < 0);
}

static void poke(const char *file, off_t at, const void *data, size_t len) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", fixture_dir, file);
    int fd = open(path, O_WRONLY);
    MUST(fd >= 0 && pwrite(fd, data, len, at) == (ssize_t)len);
    close(fd);
}

static void cut(const char *file, off_t size) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", fixture_dir, file);
    MUST(truncate(path, size) == 0);
}

// ---- making and reopening ----------------------------------------------------------------------------

static void test_create(void) {
    make_heap();
    struct stat st;
    CHECK(stat(fixture_dir, &st) == 0 && (st.st_mode & 07777) == 0700);
    static const char *const files[] = {"superblock", "heap.0", "slabs.0", "booklog.0", "roots"};
    char path[160];
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", fixture_dir, files[i]);
        CHECK(lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0600);
    }
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
    CHECK(!pm_heap.created && pm_heap.persistent && !pm_heap.readonly);
    CHECK_EQ(pm_heap.super->super.magic, PM_SUPER_MAGIC);
    CHECK_EQ(pm_heap.super->super.base, PM_HEAP_BASE);
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_DIRTY); // a new heap has never been closed
    CHECK(!pm_heap_has_roots());
    uint8_t none[16] = {0};
    CHECK(memcmp(pm_heap.super->super.uuid, none, 16) != 0);
    // Descriptors are close-on-exec and out of the program's way.
    CHECK(fcntl(pm_heap.data.fd, F_GETFD) & FD_CLOEXEC);
    CHECK(fcntl(pm_heap.dir_fd, F_GETFD) & FD_CLOEXEC);
    CHECK(pm_heap.data.fd > 64 && pm_heap.dir_fd > 64);
}

static void test_two_heaps_differ(void) {
    make_heap();
    uint8_t uuid[16];
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    memcpy(uuid, pm_heap.super->super.uuid, 16);
    pm_heap_remove();
    pm_heap_release();
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    CHECK(memcmp(uuid, pm_heap.super->super.uuid, 16) != 0);
}

static void test_state(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    uint64_t opens = pm_heap.super->state.opens;
    pm_heap_dirty();
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_DIRTY);
    CHECK_EQ(pm_heap.super->state.opens, opens + 1);
    CHECK_EQ(pm_heap.super->state.owner_pid, getpid());
    CHECK(pm_heap_clean());
    pm_heap_release();
    CHECK(!pm_heap.persistent && pm_heap.super == NULL);
    MUST(open_it(PM_OPEN_READONLY) == PM_OK);
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_CLEAN);
    pm_heap_release();
}

static void test_data_comes_back(void) {
    make_heap();
    for (int round = 0; round < 3; round++) {
        MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
        CHECK_EQ(pm_heap_map(&err), PM_OK);
        CHECK_EQ((uintptr_t)pm_heap.data.map, PM_HEAP_BASE);
        pm_heap_dirty();
        if (round == 0)
            CHECK(pm_heap_set_frontier(8 << 20));
        CHECK_EQ(pm_heap.frontier, 8 << 20);
        uint64_t *word = pm_heap_at(4096 * 5 + 8);
        CHECK_EQ(*word, round);
        *word = (uint64_t)round + 1;
        pm_heap_release();
        munmap(pm_heap_at(0), PM_HEAP_RANGE);
    }
}

static void test_remove(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    pm_heap_remove();
    CHECK(access(fixture_dir, F_OK) != 0);
    pm_heap_release();
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "No such file");
}

static void test_roots(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    pm_heap.super->slots.slot[511] = pm_slot_word(511, 5);
    CHECK(pm_heap_has_roots());
    pm_heap.super->slots.slot[511] = pm_slot_word(511, 0);
    pm_heap.super->roots[0].count = 1;
    CHECK(pm_heap_has_roots());
    pm_heap.super->state.root_epoch = pm_seal(1, PM_SALT_ROOT_EPOCH); // the other table is in force
    CHECK(!pm_heap_has_roots());
}

// ---- the lock ----------------------------------------------------------------------------------------

static int holder_pipe[2];

static void hold(enum pm_open_mode mode) {
    MUST(open_it(mode) == PM_OK);
    if (mode != PM_OPEN_READONLY)
        pm_heap_dirty();
    MUST(write(holder_pipe[1], "x", 1) == 1);
    pause();
}

static pid_t holder(enum pm_open_mode mode) {
    MUST(pipe(holder_pipe) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        hold(mode);
        _exit(0);
    }
    char byte;
    MUST(read(holder_pipe[0], &byte, 1) == 1);
    return pid;
}

static void test_lock_busy(void) {
    make_heap();
    pid_t pid = holder(PM_OPEN_EXISTING);
    char pid_text[24];
    snprintf(pid_text, sizeof pid_text, "process %d", (int)pid);
    refused(PM_OPEN_CREATE, PM_OPERATIONAL, pid_text);
    CHECK(pm_heap.busy);
    CHECK_EQ(pm_heap.busy_pid, pid);
    CHECK_HAS(err.text, "PMALLOC_BUSY=wait");
    refused(PM_OPEN_READONLY, PM_OPERATIONAL, "in use");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
    CHECK(!pm_heap.busy);
}

static void test_readers_share(void) {
    make_heap();
    pid_t pid = holder(PM_OPEN_READONLY);
    CHECK_EQ(open_it(PM_OPEN_READONLY), PM_OK);
    pm_heap_release();
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "in use");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void test_wait_for_the_lock(void) {
    make_heap();
    pid_t pid = holder(PM_OPEN_EXISTING);
    pid_t killer = fork();
    if (killer == 0) {
        usleep(100000);
        kill(pid, SIGKILL);
        _exit(0);
    }
    CHECK_EQ(pm_heap_open(fixture_dir, PM_OPEN_EXISTING, true, &err), PM_OK);
    waitpid(pid, NULL, 0);
    waitpid(killer, NULL, 0);
}

static void test_readonly_changes_nothing(void) {
    make_heap();
    uint64_t before = fingerprint();
    MUST(open_it(PM_OPEN_READONLY) == PM_OK);
    CHECK_EQ(pm_heap_map(&err), PM_OK);
    pm_heap_release();
    CHECK_EQ(fingerprint(), before);
}

// A daemon closes every descriptor it finds, and may use the numbers for its own files.
static void test_descriptors_closed_by_the_program(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    CHECK_EQ(pm_heap_map(&err), PM_OK);
    int data = pm_heap.data.fd, dir = pm_heap.dir_fd;
    close_range(64, ~0u, 0);
    MUST(dup2(STDERR_FILENO, data) == data && dup2(STDERR_FILENO, dir) == dir);
    CHECK(pm_heap_set_frontier(8 << 20));
    CHECK(pm_heap_commit(0, 8 << 20));
    CHECK(pm_file_grow(&pm_heap.log, 1 << 20));
    *(uint64_t *)pm_heap_at((8 << 20) - 8) = 5;
    CHECK(pm_heap.data.fd != data && fcntl(pm_heap.log.fd, F_GETFD) >= 0);
    CHECK_EQ(fixture_blocks(), 8 << 20);
    pm_heap_release();
    CHECK(fcntl(data, F_GETFD) >= 0 && fcntl(dir, F_GETFD) >= 0); // the program's stay open
}

static void hold_without_descriptors(void) {
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    pm_heap_dirty();
    int keep = dup2(holder_pipe[1], 5);
    close_range(6, ~0u, 0);
    MUST(write(keep, "x", 1) == 1);
    pause();
}

static void test_lock_outlives_descriptors(void) {
    make_heap();
    MUST(pipe(holder_pipe) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        hold_without_descriptors();
        _exit(0);
    }
    char byte;
    MUST(read(holder_pipe[0], &byte, 1) == 1);
    refused(PM_OPEN_EXISTING, PM_OPERATIONAL, "in use");
    CHECK(pm_heap.busy && pm_heap.busy_pid == pid);
    refused(PM_OPEN_READONLY, PM_OPERATIONAL, "in use");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
}

// ---- what is refused ---------------------------------------------------------------------------------

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

static void *remove_again_and_again(void *arg) {
    while (!enough)
        rmdir(fixture_dir);
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
    static const char *const files[] = {"heap.0", "slabs.0", "booklog.0", "roots"};
    char path[160], aside[160];
    make_heap();
    for (size_t i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", fixture_dir, files[i]);
        snprintf(aside, sizeof aside, "%s/aside", fixture_root);
        MUST(rename(path, aside) == 0);
        refused(PM_OPEN_EXISTING, PM_DAMAGE, files[i]);
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

// Writes a changed superblock, with a right checksum where `seal`.
static void with_super(struct pm_superblock super, bool seal, const char *part) {
    struct pm_superblock good;
    char path[160];
    snprintf(path, sizeof path, "%s/superblock", fixture_dir);
    int fd = open(path, O_RDONLY);
    MUST(pread(fd, &good, sizeof good, 0) == (ssize_t)sizeof good);
    close(fd);
    if (seal)
        super.crc = pm_crc32c(0, &super, offsetof(struct pm_superblock, crc));
    poke("superblock", 0, &super, sizeof super);
    refused(PM_OPEN_CREATE, PM_DAMAGE, part);
    refused(PM_OPEN_READONLY, PM_DAMAGE, part);
    poke("superblock", 0, &good, sizeof good);
}

static void test_superblock(void) {
    make_heap();
    MUST(open_it(PM_OPEN_READONLY) == PM_OK);
    const struct pm_superblock good = pm_heap.super->super;
    pm_heap_release();
    struct pm_superblock s = good;
    s.magic ^= 1;
    with_super(s, true, "is not PMAlloc's");
    s = good, s.version = 2;
    with_super(s, true, "format version 2");
    s = good, s.incompat = 4;
    with_super(s, true, "features 4");
    s = good, s.uuid[3] ^= 1;
    with_super(s, false, "checksum");
    s = good, s.reserved[1000] ^= 1;
    with_super(s, false, "checksum");
    s = good, s.base += 1 << 20;
    with_super(s, true, "geometry");
    s = good, s.range *= 2;
    with_super(s, true, "geometry");
    s = good, s.page_size = 65536;
    with_super(s, true, "geometry");
    s = good, s.node_count = 2;
    with_super(s, true, "geometry");
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

static void test_range_taken(void) {
    make_heap();
    MUST(open_it(PM_OPEN_EXISTING) == PM_OK);
    void *p = mmap(pm_heap_at(1 << 20), 4096, PROT_READ,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MUST(p == pm_heap_at(1 << 20));
    CHECK_EQ(pm_heap_map(&err), PM_OPERATIONAL);
    CHECK_HAS(err.text, "400000000000 is taken by: 400000100000-400000101000 r--p");
}

int main(void) {
    RUN_CHILD(create);
    RUN_CHILD(two_heaps_differ);
    RUN_CHILD(state);
    RUN_CHILD(data_comes_back);
    RUN_CHILD(remove);
    RUN_CHILD(roots);
    RUN_CHILD(lock_busy);
    RUN_CHILD(readers_share);
    RUN_CHILD(wait_for_the_lock);
    RUN_CHILD(readonly_changes_nothing);
    RUN_CHILD(descriptors_closed_by_the_program);
    RUN_CHILD(lock_outlives_descriptors);
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
    RUN_CHILD(range_taken);
    return CHECK_DONE();
}
