// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// core/media/persist.h: which backend a file gets, and which flushes and drains reach the backend
// in which order.
#include "media/persist.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static char page[4096] __attribute__((aligned(4096)));

// A recorder in place of the backend.
static struct {
    const char *addr;
    size_t len;
    char first; // the first byte as it was when it was flushed
} flushes[16];
static unsigned flush_count, drain_count, drained_after;

static void record_flush(const void *addr, size_t len) {
    if (flush_count < 16) {
        flushes[flush_count].addr = addr;
        flushes[flush_count].len = len;
        flushes[flush_count].first = *(const char *)addr;
    }
    flush_count++;
}

static void record_drain(void) {
    drain_count++;
    drained_after = flush_count;
}

static void record(void) {
    flush_count = drain_count = drained_after = 0;
    pm_persist = (struct pm_persist_ops){record_flush, record_drain};
}

static void test_the_operations_can_be_replaced(void) {
    record();
    pm_flush(page + 5, 100);
    CHECK(flush_count == 1 && drain_count == 0);
    CHECK(flushes[0].addr == page + 5 && flushes[0].len == 100);
    pm_drain();
    CHECK_EQ(drain_count, 1);
    record();
    pm_make_durable(page + 64, 64);
    CHECK(flush_count == 1 && drain_count == 1 && drained_after == 1);
}

static void test_commit_stores_then_flushes_then_drains(void) {
    record();
    uint64_t *word = (uint64_t *)(page + 128);
    *word = 1;
    pm_commit_u64(word, 42);
    CHECK_EQ(*word, 42);
    CHECK(flush_count == 1 && drained_after == 1 && drain_count == 1);
    CHECK(flushes[0].addr == (char *)word && flushes[0].len == 8 && flushes[0].first == 42);
}

// No backend changes memory, whether a range is empty, within a line, across lines or across pages.
static void exercise(char *memory, size_t size) {
    for (size_t i = 0; i < size; i++)
        memory[i] = (char)(i * 7);
    static const size_t ranges[][2] = {{0, 0},    {0, 1},      {63, 2},  {64, 64},
                                       {1, 1000}, {4000, 200}, {0, 8192}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (ranges[i][0] + ranges[i][1] <= size)
            pm_make_durable(memory + ranges[i][0], ranges[i][1]);
    unsigned wrong = 0;
    for (size_t i = 0; i < size; i++)
        wrong += memory[i] != (char)(i * 7);
    CHECK_EQ(wrong, 0);
    pm_commit_u64((uint64_t *)memory, 99);
    CHECK_EQ(*(uint64_t *)memory, 99);
}

static int temporary(const char *dir) {
    char path[128];
    snprintf(path, sizeof path, "%s/pmalloc-unit-XXXXXX", dir);
    int fd = mkstemp(path);
    if (fd >= 0)
        unlink(path);
    CHECK(fd >= 0 && ftruncate(fd, 16384) == 0);
    return fd;
}

static struct pm_error err;

static void test_backends(void) {
    int fd = temporary("/dev/shm");
    char *map = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    for (int d = PM_DURABLE_NONE; d <= PM_DURABLE_PAGE; d++) {
        CHECK_EQ(pm_persist_init(fd, d, "heap", &err), PM_OK);
        CHECK_EQ(pm_durability, d);
        exercise(map, 16384);
        CHECK(strlen(pm_persist_guarantee((enum pm_durability)d)) > 20);
    }
    CHECK_HAS(pm_persist_guarantee(PM_DURABLE_NONE), "not a reboot");
    CHECK_HAS(pm_persist_guarantee(PM_DURABLE_PAGE), "page by page");
    munmap(map, 16384);
    close(fd);
}

static void test_probe(void) {
    int fd = temporary("/dev/shm");
    enum pm_durability d;
    CHECK(pm_persist_probe(fd, &d) && d == PM_DURABLE_NONE);
    CHECK_EQ(pm_persist_init(fd, -1, "heap", &err), PM_OK);
    CHECK_EQ(pm_durability, PM_DURABLE_NONE);
    close(fd);
    // The build directory lies on any file system but DAX; it may be tmpfs.
    fd = temporary(".");
    struct statfs fs;
    CHECK_EQ(fstatfs(fd, &fs), 0);
    CHECK(pm_persist_probe(fd, &d));
    CHECK(fs.f_type == 0x01021994 ? d == PM_DURABLE_NONE : d != PM_DURABLE_NONE);
    close(fd);
    // What cannot be asked is not known. The heap before is as it was.
    CHECK(!pm_persist_probe(fd, &d));
    CHECK_EQ(errno, EBADF);
    CHECK_EQ(pm_persist_init(fd, -1, "other", &err), PM_OPERATIONAL);
    CHECK_EQ(pm_durability, PM_DURABLE_NONE);
}

// A write-back that fails must stop the program, because the next step relies on it.
static void test_failing_write_back_aborts(void) {
    int out[2];
    CHECK_EQ(pipe(out), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 2);
        int fd = temporary("/dev/shm");
        CHECK_EQ(pm_persist_init(fd, PM_DURABLE_PAGE, "heap", &err), PM_OK);
        char *map = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        munmap(map, 16384);
        pm_make_durable(map, 64); // nothing is mapped there: msync fails with ENOMEM
        _exit(0);
    }
    close(out[1]);
    char text[512] = "";
    size_t have = 0;
    ssize_t got;
    while ((got = read(out[0], text + have, sizeof text - 1 - have)) > 0)
        have += (size_t)got;
    close(out[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    CHECK(strncmp(text, "pmalloc: ", 9) == 0);
    CHECK_HAS(text, "pmalloc-recover");
}

// Zeroes the range and nothing beside it, by stores into the caches or past them.
static void test_zeroes_a_range_and_nothing_else(void) {
    static const size_t edges[] = {0, 1, 15, 16, 63};
    static const size_t sizes[] = {0, 1, 100, ((size_t)1 << 20) - 1, ((size_t)1 << 20) + 77};
    static const enum pm_durability rows[] = {PM_DURABLE_NONE, PM_DURABLE_CACHE, PM_DURABLE_LINE,
                                              PM_DURABLE_PAGE};
    enum pm_durability saved = pm_durability;
    size_t room = (size_t)1 << 21, wrong = 0;
    char *memory = malloc(room);
    CHECK(memory != NULL);
    for (size_t i = 0; i < 4 * 5 * 5; i++) {
        size_t from = 256 + edges[i % 5], len = sizes[i / 5 % 5];
        pm_durability = rows[i / 25];
        memset(memory, 7, room);
        pm_zero(memory + from, len);
        for (size_t b = 0; b < room; b++)
            wrong += memory[b] != (b >= from && b < from + len ? 0 : 7);
    }
    CHECK_EQ(wrong, 0);
    pm_durability = saved;
    free(memory);
}

int main(void) {
    RUN(the_operations_can_be_replaced);
    RUN(commit_stores_then_flushes_then_drains);
    RUN(backends);
    RUN(zeroes_a_range_and_nothing_else);
    RUN(probe);
    RUN(failing_write_back_aborts);
    return CHECK_DONE();
}
