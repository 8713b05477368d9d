// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Opening heaps that may be refused: a refusal must hold nothing and change nothing on disk.
#ifndef PMALLOC_TESTS_UNIT_HEAP_OPENING_H
#define PMALLOC_TESTS_UNIT_HEAP_OPENING_H

#include "base/crc.h"
#include "heap_fixture.h"
#include "media/backing/backing.h"
#include "media/backing/file.h"
#include "media/backing/file_space.h"
#include "media/open/heap_dir.h"
#include "media/open/heap_open.h"

static struct pm_error err;

static inline int open_it(enum pm_open_mode mode) {
    err = (struct pm_error){0};
    return pm_heap_open(fixture_dir, mode, false, &err);
}

static inline void make_heap(void) {
    pm_options_default();
    MUST(open_it(PM_OPEN_CREATE) == PM_OK);
    CHECK(pm_heap.created);
    pm_heap_release();
}

// ---- a fingerprint of everything under fixture_root ---------------------------------------------

static uint64_t print_sum;

static inline int print_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
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

static inline uint64_t fingerprint(void) {
    print_sum = 0;
    nftw(fixture_root, print_one, 16, FTW_PHYS);
    return print_sum;
}

// Opening fails with this status and text, holds nothing afterwards and has changed nothing.
static inline void refused(enum pm_open_mode mode, int status, const char *part) {
    uint64_t before = fingerprint();
    CHECK_EQ(open_it(mode), status);
    CHECK_EQ(err.status, status);
    CHECK_HAS(err.text, part);
    CHECK_HAS(err.text, fixture_dir);
    CHECK(strchr(err.text, '\n') == NULL);
    CHECK_EQ(fingerprint(), before);
    CHECK(pm_heap.dir_fd < 0 && pm_heap.super == NULL && pm_heap.shard[0].log.fd < 0 &&
          pm_heap.shard[0].data.fd < 0);
}

static inline void poke(const char *file, off_t at, const void *data, size_t len) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", fixture_dir, file);
    int fd = open(path, O_WRONLY);
    MUST(fd >= 0 && pwrite(fd, data, len, at) == (ssize_t)len);
    close(fd);
}

static inline void cut(const char *file, off_t size) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", fixture_dir, file);
    MUST(truncate(path, size) == 0);
}

#endif
