// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A heap for unit tests of core. A process has one heap, and its tables are never reset. So each
// test that opens a heap runs in a child of its own (RUN_CHILD).
#ifndef PMALLOC_TESTS_UNIT_HEAP_FIXTURE_H
#define PMALLOC_TESTS_UNIT_HEAP_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/options.h"
#include "blocks/arena.h"
#include "blocks/morph.h"
#include "blocks/slab.h"
#include "blocks/tables.h"
#include "check.h"
#include "media/backing/file.h"
#include "media/heap.h"
#include "media/open/heap_open.h"
#include "media/persist.h"
#include "pages/extent_adopt.h"
#include "pages/extent_resize.h"
#include "pages/extent_take.h"
#include "pages/free_extents.h"
#include "pages/frontier.h"
#include "pages/pagemap.h"

static char fixture_root[64]; // a directory of this test
static char fixture_dir[96];  // where the heap is, or will be

static inline void fixture_make(void) {
    snprintf(fixture_root, sizeof fixture_root, "/dev/shm/pmalloc-unit-XXXXXX");
    if (!mkdtemp(fixture_root)) {
        perror(fixture_root);
        exit(2);
    }
    snprintf(fixture_dir, sizeof fixture_dir, "%s/heap", fixture_root);
}

static inline int fixture_unlink(const char *path, const struct stat *st, int flag,
                                 struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline void fixture_drop(void) {
    nftw(fixture_root, fixture_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

// An empty one of the same name: who made it drops it.
static inline void fixture_clear(void) {
    fixture_drop();
    if (mkdir(fixture_root, 0700) != 0) {
        perror(fixture_root);
        exit(2);
    }
}

// Runs `fn` in a child and waits for it. Returns its exit status, or 128 + the signal that ended
// it.
static inline int in_child(void (*fn)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        check_failures = 0;
        fn();
        fflush(NULL);
        _exit(check_failures != 0);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Like RUN, but in a child and with an empty fixture_root.
#define RUN_CHILD(name)                                                                            \
    do {                                                                                           \
        fixture_make();                                                                            \
        int child_status = in_child(test_##name);                                                  \
        fixture_drop();                                                                            \
        check_failures += child_status != 0;                                                       \
        printf("%s %s\n", child_status == 0 ? "ok" : "FAILED", #name);                             \
        if (child_status > 1)                                                                      \
            printf("  status %d\n", child_status);                                                 \
        fflush(stdout);                                                                            \
    } while (0)

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if (!(call)) {                                                                             \
            fprintf(stderr, "%s:%d: cannot go on: %s\n", __FILE__, __LINE__, #call);               \
            _exit(2);                                                                              \
        }                                                                                          \
    } while (0)

static inline void fixture_tables(void) { MUST(pm_tables_reserve(2, 1)); }

// Makes the tables, and a new, empty heap at fixture_dir. The caller has set the options before.
static inline void fixture_new_heap(void) {
    struct pm_error err = {0};
    fixture_tables();
    if (pm_heap_open(fixture_dir, PM_OPEN_CREATE, false, &err) != PM_OK ||
        pm_heap_map(&err) != PM_OK) {
        fprintf(stderr, "fixture: %s\n", err.text);
        _exit(2);
    }
    pm_heap_dirty();
    MUST(pm_log_reset(&pm_heap.shard[0]));
}

// Opens the existing heap and replays its log, without collecting.
static inline int fixture_reopen(enum pm_open_mode mode, struct pm_error *err) {
    fixture_tables();
    int status = pm_heap_open(fixture_dir, mode, false, err);
    if (status == PM_OK)
        status = pm_tables_extend(err);
    if (status == PM_OK)
        status = pm_heap_map(err);
    if (status == PM_OK)
        status = pm_extent_cover(err);
    if (status == PM_OK)
        status = pm_log_load(&pm_heap.shard[0], NULL, err);
    if (status == PM_OK) {
        pm_extent_expect(&pm_heap.shard[0]);
        status = pm_log_each(&pm_heap.shard[0], pm_extent_adopt, err);
    }
    if (status == PM_OK)
        status = pm_extent_check(err);
    if (status == PM_OK)
        status = pm_extent_fill_gaps(mode != PM_OPEN_READONLY, err);
    if (status == PM_OK && mode != PM_OPEN_READONLY)
        pm_log_activate(&pm_heap.shard[0]);
    return status;
}

static inline uint64_t fixture_blocks(void) {
    struct stat st;
    return fstat(pm_heap.shard[0].data.fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

// xorshift: the same numbers in every run and on every machine.
static uint64_t fixture_seed = 88172645463325252ull;
static inline uint64_t rnd(uint64_t below) {
    fixture_seed ^= fixture_seed << 13;
    fixture_seed ^= fixture_seed >> 7;
    fixture_seed ^= fixture_seed << 17;
    return fixture_seed % below;
}

#endif
