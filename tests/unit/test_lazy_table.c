// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Tables that become writable in steps.
#include "base/lazy_table.h"

#include "base/options.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "media/backing/range.h"
#include "media/heap.h"
#include "media/open/heap_open.h"

#define GIB ((size_t)1 << 30)

static bool can_write(char *p) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); // so that ASan does not report the fault
        *p = 1;
        _exit(0);
    }
    int status;
    return waitpid(child, &status, 0) == child && status == 0;
}

static void test_steps(void) {
    struct pm_lazy_table t;
    CHECK(pm_lazy_table_reserve(&t, 64 * GIB));
    CHECK(t.map[0] == 0);
    CHECK(pm_lazy_table_need(&t, 0));
    CHECK(can_write(t.map) && !can_write(t.map + (5 << 20)));
    errno = 77;
    CHECK(pm_lazy_table_need(&t, 5 << 20));
    CHECK_EQ(errno, 77);
    CHECK(can_write(t.map + (5 << 20) - 1));
    CHECK(!can_write(t.map + GIB));
    CHECK(pm_lazy_table_need(&t, 4 << 20)); // already there
    CHECK(pm_lazy_table_need(&t, GIB) && can_write(t.map + GIB - 1));
    CHECK(!pm_lazy_table_need(&t, 64 * GIB + 1));
    munmap(t.map, t.reach);
}

// Tables along the range grow together, each by its own ratio of table to range.
static void test_along_the_range(void) {
    static struct pm_range_table small = {.element = 1, .shift = 4};
    static struct pm_range_table large = {.element = 1 << 20, .shift = 16};
    CHECK(pm_range_table_reserve(&small, GIB) && pm_range_table_reserve(&large, GIB));
    CHECK(small.table[0].reach == GIB / 16 && large.table[0].reach == GIB / 65536 << 20);
    CHECK(small.table[0].map[GIB / 16 - 1] == 0 && large.table[0].map[GIB] == 0);
    CHECK(pm_range_tables_cover(0, 0));
    CHECK(!can_write(small.table[0].map + (2 << 20)) && !can_write(large.table[0].map + (2 << 20)));
    CHECK(pm_range_tables_cover(0, (32 << 20) + 1)); // a part of an element needs the whole element
    CHECK(can_write(small.table[0].map + (2 << 20)) && !can_write(small.table[0].map + (4 << 20)));
    CHECK(can_write(large.table[0].map + (513 << 20) - 1) &&
          !can_write(large.table[0].map + (514 << 20)));
    munmap(small.table[0].map, small.table[0].reach);
    CHECK(pm_range_table_reserve(&small, GIB)); // a second time, but it is listed once
    alarm(10);                                  // the walk of a circular list would never end
    CHECK(pm_range_tables_cover(0, GIB) &&
          can_write(large.table[0].map + large.table[0].reach - 1));
    CHECK(!pm_range_tables_cover(0, GIB + 1));
    alarm(0);
    munmap(small.table[0].map, small.table[0].reach);
    munmap(large.table[0].map, large.table[0].reach);
}

// Tables of one reservation are as good as apart.
static void test_side_by_side(void) {
    static struct pm_range_table t[] = {{.element = 24, .shift = 16}, {.element = 8, .shift = 12}};
    CHECK(pm_range_tables_reserve(t, 2, GIB));
    CHECK(t[0].table[0].reach == GIB / 65536 * 24 && t[1].table[0].reach == GIB / 4096 * 8);
    CHECK(t[1].table[0].map >= t[0].table[0].map + t[0].table[0].reach);
    CHECK(pm_range_tables_cover(0, GIB));
    for (unsigned i = 0; i < 2; i++) {
        char *end = t[i].table[0].map + t[i].table[0].reach;
        CHECK(can_write(end - 1));
        pm_table_touch(t[i].table[0].map + 1, end - 1);
        CHECK(t[i].table[0].map[0] == 0 && end[-2] == 0);
    }
}

// What the limit counts already. Under ASan it is much.
static size_t data_bytes(void) {
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && !kib && fgets(line, sizeof line, file))
        sscanf(line, "VmData: %zu", &kib);
    if (file)
        fclose(file);
    return kib << 10;
}

// `ulimit -d` counts writable private memory as vm.overcommit_memory=2 does.
static void test_limited(void) {
    struct rlimit limit = {data_bytes() + GIB, RLIM_INFINITY};
    struct pm_lazy_table t;
    pm_options_default();
    if (fork() == 0) {
        int bad = setrlimit(RLIMIT_DATA, &limit) != 0 || !pm_heap_choose_range(1) ||
                  pm_range != 2 * PM_SHARD_RANGE || !pm_lazy_table_reserve(&t, 64 * GIB) ||
                  !pm_lazy_table_need(&t, GIB / 2) || pm_lazy_table_need(&t, 2 * GIB) ||
                  errno != ENOMEM || !pm_lazy_table_need(&t, GIB / 2 + 1);
        _exit(bad);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
}

int main(void) {
    RUN(steps);
    RUN(along_the_range);
    RUN(side_by_side);
    RUN(limited);
    return CHECK_DONE();
}
