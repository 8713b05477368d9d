// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What a process is at in a fork: the drawing in fork.h is the table, every other edge ends the
// process, and each kind of fork leaves both sides where the drawing says.
#include "fork/fork.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>

#include "heap_fixture.h"
#include "preload/pmalloc.h"
#include "process/before_main.h"
#include "process/entry.h"
#include "process/start.h"

// ---- the edges ----------------------------------------------------------------------------------

static bool drawn(unsigned from, unsigned to) {
    static const enum pm_fork_stage edge[][2] = {
        {PM_STAGE_NONE, PM_STAGE_PREPARED},        {PM_STAGE_PREPARED, PM_STAGE_WAITING},
        {PM_STAGE_PREPARED, PM_STAGE_MAKING_HEAP}, {PM_STAGE_PREPARED, PM_STAGE_COPYING},
        {PM_STAGE_PREPARED, PM_STAGE_NONE},        {PM_STAGE_WAITING, PM_STAGE_NONE},
        {PM_STAGE_MAKING_HEAP, PM_STAGE_COPYING},  {PM_STAGE_MAKING_HEAP, PM_STAGE_WAITING},
        {PM_STAGE_MAKING_HEAP, PM_STAGE_NONE},     {PM_STAGE_COPYING, PM_STAGE_NONE},
        {PM_STAGE_COPYING, PM_STAGE_COPIER_RUNS},  {PM_STAGE_COPIER_RUNS, PM_STAGE_NONE},
    };
    for (size_t i = 0; i < sizeof edge / sizeof edge[0]; i++)
        if (edge[i][0] == from && edge[i][1] == to)
            return true;
    return false;
}

static unsigned wrong_from, wrong_to;

static void take_it(void) {
    close(STDERR_FILENO);
    pm_machine_check(&pm_fork_machine, wrong_from, wrong_to);
}

static void test_no_other_edge(void) {
    for (wrong_from = 0; wrong_from < PM_STAGES; wrong_from++)
        for (wrong_to = 0; wrong_to < PM_STAGES; wrong_to++)
            CHECK_EQ(in_child(take_it), drawn(wrong_from, wrong_to) ? 0 : 128 + SIGABRT);
}

// ---- forks --------------------------------------------------------------------------------------

static char *start(const char *fork, size_t bytes) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_FORK", fork, 1);
    pm_process_before_main();
    char *p = pm_malloc(bytes);
    MUST(p && pmalloc_set_root(0, p) == 0);
    memset(p, 1, bytes);
    return p;
}

// Both sides after a fork.
static void forked(enum pm_fork_stage child_stage, enum pm_heap_state child_heap,
                   enum pm_heap_state parent_heap) {
    int status = 1;
    CHECK_EQ(pm_fork_stage(), PM_STAGE_NONE);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_EQ(pm_fork_stage(), child_stage);
        CHECK_EQ(pm_heap_state(), child_heap);
        int again = 1;
        pid = fork(); // waits for the copier, if there is one
        CHECK_EQ(pm_fork_stage(), PM_STAGE_NONE);
        if (pid == 0)
            _exit(check_failures != 0);
        CHECK(waitpid(pid, &again, 0) == pid && again == 0);
        _exit(check_failures != 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK_EQ(pm_heap_state(), parent_heap);
}

static void test_private_fork(void) {
    start("private", 100);
    forked(PM_STAGE_NONE, PM_HEAP_PRIVATE, PM_HEAP_SHARED); // copied at once
    forked(PM_STAGE_NONE, PM_HEAP_PRIVATE, PM_HEAP_SHARED);
}

static void test_private_fork_of_much(void) {
    start("private", 32 << 20);
    forked(PM_STAGE_COPIER_RUNS, PM_HEAP_PRIVATE, PM_HEAP_SHARED);
}

static void test_fork_after_the_end(void) {
    start("private", 100);
    CHECK(pm_process_end());
    forked(PM_STAGE_NONE, PM_HEAP_PRIVATE, PM_HEAP_PARTED);
}

static void test_fork_with_a_copy(void) {
    start("copy", 100);
    forked(PM_STAGE_NONE, PM_HEAP_SHARED, PM_HEAP_SHARED);
}

// The parent goes private, and copies at once.
static void test_fork_that_takes_the_heap(void) {
    start("follow", 100);
    forked(PM_STAGE_NONE, PM_HEAP_SHARED, PM_HEAP_PRIVATE);
    CHECK_EQ(pm_fork_stage(), PM_STAGE_NONE);
    forked(PM_STAGE_NONE, PM_HEAP_PRIVATE, PM_HEAP_PRIVATE); // nothing to look after
}

static void test_fork_that_takes_much(void) {
    char *p = start("follow", 32 << 20);
    pid_t pid = fork();
    if (pid == 0)
        _exit(pm_heap_state() != PM_HEAP_SHARED || pm_fork_stage() != PM_STAGE_NONE);
    int status = 1;
    CHECK_EQ(pm_fork_stage(), PM_STAGE_COPIER_RUNS);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK_EQ(p[16 << 20], 1);
}

static void test_fork_that_fails(void) {
    start("private", 100);
    struct pm_fork_call call = {SYS_clone, {CLONE_SIGHAND | SIGCHLD, 0, 0, 0, 0, 0}};
    CHECK_EQ(pm_fork_call(&call), -EINVAL); // not without CLONE_VM
    CHECK_EQ(pm_fork_stage(), PM_STAGE_NONE);
    forked(PM_STAGE_NONE, PM_HEAP_PRIVATE, PM_HEAP_SHARED);
}

static void test_volatile_fork(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    pm_process_before_main();
    forked(PM_STAGE_NONE, PM_HEAP_VOLATILE, PM_HEAP_VOLATILE);
}

int main(void) {
    RUN_CHILD(no_other_edge);
    RUN_CHILD(private_fork);
    RUN_CHILD(private_fork_of_much);
    RUN_CHILD(fork_after_the_end);
    RUN_CHILD(fork_with_a_copy);
    RUN_CHILD(fork_that_takes_the_heap);
    RUN_CHILD(fork_that_takes_much);
    RUN_CHILD(fork_that_fails);
    RUN_CHILD(volatile_fork);
    return CHECK_DONE();
}
