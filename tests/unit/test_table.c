// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Tables that become writable in steps.
#include "table.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "heap.h"

#define GIB ((size_t)1 << 30)

static bool can_write(char *p) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); // no report of ASan
        *p = 1;
        _exit(0);
    }
    int status;
    return waitpid(child, &status, 0) == child && status == 0;
}

static void test_whole(void) {
    struct pm_table t;
    pm_table_steps = false;
    CHECK(pm_table_reserve(&t, 64 * GIB));
    CHECK(pm_table_need(&t, 64 * GIB));
    CHECK(can_write(t.map + 64 * GIB - 1));
    CHECK(!pm_table_need(&t, 64 * GIB + 1));
    munmap(t.map, t.reach);
}

static void test_steps(void) {
    struct pm_table t;
    pm_table_steps = true;
    CHECK(pm_table_reserve(&t, 64 * GIB));
    CHECK(t.map[0] == 0 && t.map[64 * GIB - 1] == 0);
    CHECK(pm_table_need(&t, 0));
    CHECK(!can_write(t.map));
    errno = 77;
    CHECK(pm_table_need(&t, 5 << 20));
    CHECK_EQ(errno, 77);
    CHECK(can_write(t.map + (5 << 20) - 1));
    CHECK(!can_write(t.map + GIB));
    CHECK(pm_table_need(&t, 4 << 20)); // is there already
    CHECK(pm_table_need(&t, GIB) && can_write(t.map + GIB - 1));
    CHECK(!pm_table_need(&t, 64 * GIB + 1));
    munmap(t.map, t.reach);
}

// What counts already: much, under ASan.
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
    struct pm_table t;
    if (fork() == 0) {
        int bad = setrlimit(RLIMIT_DATA, &limit) != 0 || !pm_heap_choose_range() ||
                  !pm_table_steps || pm_range != PM_HEAP_RANGE || !pm_table_reserve(&t, 64 * GIB) ||
                  !pm_table_need(&t, GIB / 2) || pm_table_need(&t, 2 * GIB) || errno != ENOMEM ||
                  !pm_table_need(&t, GIB / 2 + 1);
        _exit(bad);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    CHECK(pm_heap_choose_range() && !pm_table_steps);
}

int main(void) {
    RUN(whole);
    RUN(steps);
    RUN(limited);
    return CHECK_DONE();
}
