// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// base/os_file: writing goes on after a signal and after a short write (pwrite is the test's, see
// the Makefile), directories of any length are listed whole.
#include "base/os_file.h"

#include "heap_fixture.h"

static unsigned signals_left, calls;
static size_t most = SIZE_MAX;
static int failure;

ssize_t __real_pwrite(int fd, const void *data, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t len, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t len, off_t at) {
    calls++;
    if (signals_left) {
        signals_left--;
        errno = EINTR;
        return -1;
    }
    if (failure) {
        errno = failure;
        return -1;
    }
    return __real_pwrite(fd, data, len < most ? len : most, at);
}

static int new_file(const char *name, int flags) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", fixture_root, name);
    int fd = open(path, O_RDWR | O_CREAT | flags, 0600);
    MUST(fd >= 0);
    return fd;
}

static void test_write_all(void) {
    static const char text[] = "neither a signal nor a short write ends it";
    char back[sizeof text + 8] = "";
    int fd = new_file("text", 0);
    signals_left = 3;
    most = 5;
    CHECK(pm_os_write_all(fd, text, sizeof text, 8));
    CHECK_EQ(calls, 3 + (sizeof text + 4) / 5);
    CHECK(pread(fd, back, sizeof back, 0) == (ssize_t)sizeof back);
    CHECK(memcmp(back, "\0\0\0\0\0\0\0", 8) == 0 && memcmp(back + 8, text, sizeof text) == 0);
    failure = ENOSPC;
    CHECK(!pm_os_write_all(fd, text, sizeof text, 0) && errno == ENOSPC);
    CHECK(pm_os_write_all(fd, text, 0, 0));
}

static void test_fd_at_path(void) {
    char path[128], aside[128];
    int fd = new_file("one", 0);
    snprintf(path, sizeof path, "%s/one", fixture_root);
    snprintf(aside, sizeof aside, "%s/two", fixture_root);
    CHECK(pm_os_fd_at_path(fd, path) && !pm_os_fd_at_path(-1, path));
    MUST(rename(path, aside) == 0);
    CHECK(!pm_os_fd_at_path(fd, path) && pm_os_fd_at_path(fd, aside));
    MUST(symlink(aside, path) == 0);
    CHECK(!pm_os_fd_at_path(fd, path)); // a link is not followed
    MUST(unlink(path) == 0);
    close(new_file("one", O_EXCL));
    CHECK(!pm_os_fd_at_path(fd, path));
}

#define NAMES 500 // more than one buffer holds

static bool mark(const char *name, void *arg) {
    bool *seen = arg;
    int number;
    CHECK(sscanf(name, "some-name-%d", &number) == 1 && number < NAMES && !seen[number]);
    return seen[number] = true;
}

static bool only_one(const char *name, void *arg) {
    (void)name;
    ++*(unsigned *)arg;
    return false;
}

static void test_each_name(void) {
    bool seen[NAMES] = {false};
    unsigned visits = 0;
    for (int i = 0; i < NAMES; i++) {
        char name[32];
        snprintf(name, sizeof name, "some-name-%d", i);
        close(new_file(name, O_EXCL));
    }
    int fd = open(fixture_root, O_RDONLY | O_DIRECTORY);
    CHECK(pm_os_each_name(fd, mark, seen));
    for (int i = 0; i < NAMES; i++)
        CHECK(seen[i]);
    MUST(lseek(fd, 0, SEEK_SET) == 0);
    CHECK(pm_os_each_name(fd, only_one, &visits));
    CHECK_EQ(visits, 1);
    close(fd);
    CHECK(!pm_os_each_name(fd, only_one, &visits) && errno == EBADF);
}

int main(void) {
    RUN_CHILD(write_all);
    RUN_CHILD(fd_at_path);
    RUN_CHILD(each_name);
    return CHECK_DONE();
}
