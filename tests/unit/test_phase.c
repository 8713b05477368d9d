// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What the process is doing: each edge of the drawing in phase.h is taken by the function that it
// names, every other one ends the process; a fork amid the end of another thread.
#include "state/phase.h"

#include <pthread.h>

#include "base/signal_stack.h"
#include "heap_fixture.h"
#include "preload/pmalloc.h"
#include "process/before_main.h"
#include "process/entry.h"
#include "process/start.h"

static void settings(const char *fork) {
    setenv("PMALLOC_HEAP", fixture_dir, 1);
    setenv("PMALLOC_FORK", fork, 1);
}

// ---- the edges ----------------------------------------------------------------------------------

static void test_a_life(void) {
    settings("private");
    CHECK_EQ(pm_phase(), PM_COLD);
    CHECK(!pm_phase_serves());
    CHECK(pm_process_end()); // nothing to end
    CHECK_EQ(pm_phase(), PM_COLD);
    pm_free(pm_malloc(1));
    CHECK_EQ(pm_phase(), PM_READY);
    CHECK(pm_phase_serves());
    pm_process_start();
    CHECK_EQ(pm_phase(), PM_READY);
    pm_process_before_main();
    CHECK_EQ(pm_phase(), PM_RUNNING);
    CHECK_EQ(pmalloc_set_root(0, pm_malloc(1)), 0);
    CHECK(pm_process_end());
    CHECK_EQ(pm_phase(), PM_ENDED);
    CHECK_EQ(pm_heap_state(), PM_HEAP_PARTED);
    pm_free(pm_malloc(1));
    CHECK(pm_process_end());
    CHECK_EQ(pm_phase(), PM_ENDED);
}

// exit() in a constructor.
static void test_an_end_before_main(void) {
    settings("private");
    pm_process_start();
    CHECK(pm_process_end());
    CHECK_EQ(pm_phase(), PM_ENDED);
}

static void *see_starting(void *arg) {
    pm_process_start();
    *(enum pm_phase *)arg = pm_phase();
    return NULL;
}

static void test_starting(void) {
    enum pm_phase seen = PM_COLD;
    pthread_t thread;
    MUST(pm_phase_move(PM_COLD, PM_STARTING)); // by a thread that is not there: the other one waits
    MUST(pthread_create(&thread, NULL, see_starting, &seen) == 0);
    CHECK(!pm_phase_move(PM_COLD, PM_STARTING));
    MUST(pm_phase_move(PM_STARTING, PM_READY));
    pm_futex_wake(&pm_phase_word, 1);
    MUST(pthread_join(thread, NULL) == 0);
    CHECK_EQ(seen, PM_READY);
}

// ---- no other edge ------------------------------------------------------------------------------

static bool drawn(enum pm_phase from, enum pm_phase to) {
    static const enum pm_phase edge[][2] = {
        {PM_COLD, PM_STARTING},    {PM_STARTING, PM_READY},   {PM_READY, PM_RUNNING},
        {PM_STARTING, PM_WAITING}, {PM_WAITING, PM_STARTING}, {PM_READY, PM_ENDING},
        {PM_READY, PM_ENDED},      {PM_RUNNING, PM_ENDING},   {PM_RUNNING, PM_ENDED},
        {PM_ENDING, PM_ENDED},     {PM_ENDING, PM_DOOMED},    {PM_ENDING, PM_RUNNING},
    };
    for (size_t i = 0; i < sizeof edge / sizeof edge[0]; i++)
        if (edge[i][0] == from && edge[i][1] == to)
            return true;
    return false;
}

static enum pm_phase wrong_from, wrong_to;

static void take_it(void) {
    close(STDERR_FILENO);
    (void)pm_phase_move(wrong_from, wrong_to);
}

static void test_no_other_edge(void) {
    for (wrong_from = 0; wrong_from < PM_PHASES; wrong_from++)
        for (wrong_to = 0; wrong_to < PM_PHASES; wrong_to++) {
            CHECK_EQ(pm_machine_may(&pm_phase_machine, wrong_from, wrong_to),
                     drawn(wrong_from, wrong_to));
            CHECK_EQ(in_child(take_it), drawn(wrong_from, wrong_to) ? 0 : 128 + SIGABRT);
        }
}

// ---- a fork amid the end of another thread ------------------------------------------------------

static _Atomic bool held, let_go;

static void *holder(void *unused) {
    pm_lock_raw(&pm_process_lock);
    held = true;
    while (!let_go)
        usleep(100);
    pm_unlock_raw(&pm_process_lock);
    return unused;
}

static void *ender(void *unused) {
    CHECK(pm_process_end());
    CHECK_EQ(pm_phase(), PM_ENDED);
    CHECK(!pm_heap_on_media());
    return unused;
}

static void *letter_go(void *unused) {
    usleep(20000); // by then the fork waits for the lock, as the end does
    let_go = true;
    return unused;
}

#if ASAN
void __asan_unpoison_memory_region(const volatile void *at, size_t len);

// In a forked child: the thread that had this stack is the parent's, and its frames stay marked.
static void forget_frames(void) {
    pm_signal_stack_give();
    char *from = (char *)pm_signal_stack_own;
    if (from)
        __asan_unpoison_memory_region(
            from, (size_t)((char *)pm_signal_stack_kept(pm_signal_stack_own) - from));
}
#else
static void forget_frames(void) {}
#endif

// The end has begun and waits for a lock; so does a fork. Either may get it first.
static void fork_amid_the_end(void) {
    pthread_t thread[3];
    pm_process_before_main();
    CHECK_EQ(pmalloc_set_root(0, pm_malloc(100)), 0);
    MUST(pthread_create(&thread[0], NULL, holder, NULL) == 0);
    while (!held)
        usleep(100);
    MUST(pthread_create(&thread[1], NULL, ender, NULL) == 0);
    while (pm_phase() != PM_ENDING)
        usleep(100);
    MUST(pthread_create(&thread[2], NULL, letter_go, NULL) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20); // rather than wait for the end of a thread that is the parent's
        forget_frames();
        bool own = pm_heap_on_media();
        CHECK(pm_phase() != PM_ENDING);
        CHECK(pm_process_end());
        CHECK_EQ(pm_heap_state(), own ? PM_HEAP_PARTED : PM_HEAP_PRIVATE);
        _exit(check_failures != 0);
    }
    int status = 1;
    for (int i = 0; i < 3; i++)
        MUST(pthread_join(thread[i], NULL) == 0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

// Twenty times: about half of the forks come before the end has the locks.
static void amid_the_end(const char *fork) {
    settings(fork);
    for (int i = 0; i < 20; i++)
        CHECK_EQ(in_child(fork_amid_the_end), 0);
}

static void test_fork_with_a_copy_amid_the_end(void) { amid_the_end("copy"); }
static void test_fork_that_takes_the_heap_amid_the_end(void) { amid_the_end("follow"); }
static void test_private_fork_amid_the_end(void) { amid_the_end("private"); }

int main(void) {
    RUN_CHILD(a_life);
    RUN_CHILD(an_end_before_main);
    RUN_CHILD(starting);
    RUN_CHILD(no_other_edge);
    RUN_CHILD(fork_with_a_copy_amid_the_end);
    RUN_CHILD(fork_that_takes_the_heap_amid_the_end);
    RUN_CHILD(private_fork_amid_the_end);
    return CHECK_DONE();
}
