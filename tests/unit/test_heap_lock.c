// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The lock of a heap directory: who may open it beside whom, and what becomes of it when its holder
// dies or loses its descriptors.
#include "heap_opening.h"

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
    CHECK_EQ(err.why, PM_WHY_BUSY);
    CHECK_EQ(err.holder.pid, pid);
    CHECK_HAS(err.text, "PMALLOC_BUSY=wait");
    refused(PM_OPEN_READONLY, PM_OPERATIONAL, "in use");
    CHECK_EQ(open_it(PM_OPEN_LOOK), PM_OK); // beside the owner, and without a lock
    CHECK(pm_heap.readonly && pm_heap.super->state.owner_pid == (uint64_t)pid);
    pm_heap_release();
    refused(PM_OPEN_READONLY, PM_OPERATIONAL, "in use");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
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
    int data = pm_heap.shard[0].data.fd, dir = pm_heap.dir_fd;
    close_range(64, ~0u, 0);
    MUST(dup2(STDERR_FILENO, data) == data && dup2(STDERR_FILENO, dir) == dir);
    CHECK(pm_shard_set_frontier(&pm_heap.shard[0], 8 << 20));
    CHECK(pm_heap_allocate_space(0, 8 << 20));
    CHECK(pm_file_grow(&pm_heap.shard[0].log, 1 << 20));
    *(uint64_t *)pm_heap_at((8 << 20) - 8) = 5;
    CHECK(pm_heap.shard[0].data.fd != data && fcntl(pm_heap.shard[0].log.fd, F_GETFD) >= 0);
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
    CHECK(pm_is_busy(&err) && err.holder.pid == pid);
    refused(PM_OPEN_READONLY, PM_OPERATIONAL, "in use");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK_EQ(open_it(PM_OPEN_EXISTING), PM_OK);
}

int main(void) {
    RUN_CHILD(lock_busy);
    RUN_CHILD(readers_share);
    RUN_CHILD(wait_for_the_lock);
    RUN_CHILD(readonly_changes_nothing);
    RUN_CHILD(descriptors_closed_by_the_program);
    RUN_CHILD(lock_outlives_descriptors);
    return CHECK_DONE();
}
