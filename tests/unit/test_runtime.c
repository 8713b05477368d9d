// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The life of a persistent heap in one process after another: killed, closed, forked, full,
// rootless.
#include <pthread.h>
#include <time.h>

#include "session.h"

// A kill in so many milliseconds, from the kernel.
static void alarm_ms(long ms) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {0, ms * 1000000}};
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
         timer_settime(timer, 0, &when, NULL) == 0);
}

static void test_killed_again_and_again(void) {
    for (uint64_t i = 0; i < 6; i++) {
        expected_live = i ? i * 1000 + 1 : 0;
        CHECK_EQ(in_child(killed_session), 128 + SIGKILL);
    }
    struct stat st;
    char path[160];
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    // 6000 nodes, a large block and the garbage of one session; not of six
    CHECK(stat(path, &st) == 0 && st.st_blocks * 512 < 6 << 20);
}

static void test_closed_again_and_again(void) {
    for (uint64_t i = 0; i < 4; i++) {
        expected_live = i ? i * 1000 + 1 : 0;
        CHECK_EQ(in_child(closed_session), 0);
        char path[160];
        snprintf(path, sizeof path, "%s/bitmaps.0", fixture_dir);
        CHECK(access(path, F_OK) == 0);
    }
}

static void test_killed_and_closed_by_turns(void) {
    for (uint64_t i = 0; i < 6; i++) {
        expected_live = i ? i * 1000 + 1 : 0;
        CHECK_EQ(in_child(i % 2 ? closed_session : killed_session), i % 2 ? 0 : 128 + SIGKILL);
    }
}

// ---- without roots ------------------------------------------------------------------------------

static void rootless(void) {
    settings();
    pm_process_before_main();
    CHECK_EQ(pm_process_recovery()->live_objects, 0);
    for (int i = 0; i < 10000; i++)
        memset(pm_malloc(1000), 1, 1000);
    CHECK(pm_heap.shard[0].frontier > 8 << 20);
}

static void rootless_closed(void) {
    rootless();
    pm_process_end();
}

static void test_rootless(void) {
    struct stat st;
    char path[160];
    snprintf(path, sizeof path, "%s/heap.0", fixture_dir);
    CHECK_EQ(in_child(rootless), 0); // as _exit
    CHECK_EQ(in_child(rootless), 0);
    CHECK_EQ(in_child(rootless_closed), 0);
    CHECK(stat(path, &st) == 0 && st.st_blocks == 0);
}

// ---- slots --------------------------------------------------------------------------------------

static void slots(void) {
    settings();
    errno = 0;
    CHECK(pmalloc_set_root(PM_ROOT_SLOTS, &errno) == -1 && errno == EINVAL);
    CHECK(pmalloc_get_root(PM_ROOT_SLOTS) == NULL);
    void *p = pm_malloc(10);
    CHECK_EQ(pmalloc_set_root(511, p), 0);
    CHECK(pmalloc_get_root(511) == p && pmalloc_get_root(510) == NULL);
    CHECK_EQ(pmalloc_set_root(511, NULL), 0);
    CHECK(pmalloc_get_root(511) == NULL);
    CHECK(strlen(pmalloc_version()) >= 5);
}

static void slots_volatile(void) {
    setenv("PMALLOC_BACKING", "volatile", 1);
    errno = 0;
    CHECK(pmalloc_set_root(0, &errno) == -1 && errno == ENOTSUP);
    CHECK(pmalloc_get_root(0) == NULL);
    CHECK(!pmalloc_is_persistent());
    CHECK_STR(pmalloc_heap_path(), "");
}

static void test_slots(void) {
    CHECK_EQ(in_child(slots), 0);
    CHECK_EQ(in_child(slots_volatile), 0);
}

// ---- after a recovery ---------------------------------------------------------------------------

static void free_everything(void) {
    settings();
    pm_process_before_main();
    struct node *list = pmalloc_get_root(0), *next;
    pm_free((void *)(uintptr_t)list->pad[0]);
    for (; list; list = next) {
        next = list->next;
        pm_free(list);
    }
    pmalloc_set_root(0, NULL);
    pm_trim();
    CHECK(pm_extent_stats().active <= 2 * PM_CLASSES);
}

static void free_twice(void) {
    settings();
    struct node *list = pmalloc_get_root(0);
    close(STDERR_FILENO);
    pm_free(list);
    pm_free(list);
}

static void free_interior(void) {
    settings();
    struct node *list = pmalloc_get_root(0);
    close(STDERR_FILENO);
    pm_free((char *)list + 16);
}

static void realloc_recovered(void) {
    settings();
    struct node *list = pmalloc_get_root(0);
    uint64_t value = list->value;
    uint64_t *large = pm_realloc((void *)(uintptr_t)list->pad[0], 300000);
    CHECK(large[0] == value && large[9999] == value);
    struct node *bigger = pm_realloc(list, 5000);
    CHECK(bigger != list && bigger->value == value);
}

static void test_recovered_blocks_are_ordinary(void) {
    expected_live = 0;
    CHECK_EQ(in_child(killed_session), 128 + SIGKILL);
    CHECK_EQ(in_child(free_twice), 128 + SIGABRT);
    expected_live = 1001;
    CHECK_EQ(in_child(killed_session), 128 + SIGKILL);
    CHECK_EQ(in_child(free_interior), 128 + SIGABRT);
    CHECK_EQ(in_child(realloc_recovered), 0);
    expected_live = 0;
}

static void test_freeing_everything(void) {
    expected_live = 0;
    CHECK_EQ(in_child(closed_session), 0);
    CHECK_EQ(in_child(free_everything), 0);
}

// ---- fork ---------------------------------------------------------------------------------------

static void forking(void) {
    session();
    struct node *list = pmalloc_get_root(0);
    uint64_t length = list_length(list);
    pid_t pid = fork();
    if (pid == 0) {
        CHECK(!pmalloc_is_persistent());
        CHECK_EQ(list_length(list), length);
        for (struct node *n = list; n; n = n->next)
            n->value = 0; // its own copy
        for (int i = 0; i < 5000; i++)
            pm_free(pm_malloc((size_t)i * 10));
        pm_free(list);
        _exit(check_failures != 0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK_EQ(list_length(list), length);
    CHECK_EQ(list->value, length - 1);
    pm_free(pm_malloc(10));
}

static void test_fork(void) {
    expected_live = 0;
    CHECK_EQ(in_child(forking), 0);
    expected_live = 1001;
    CHECK_EQ(in_child(forking), 0);
}

// ---- two threads on a heap that gives back at once, killed --------------------------------------

#define SLOTS 64

static void *churn(void *arg) {
    uint64_t seed = (uint64_t)(uintptr_t)arg;
    for (;;) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t words = 2 + (seed >> 40) % ((seed >> 33) % 8 ? 100 : 30000);
        uint64_t *p = pm_malloc(words * 8);
        MUST(p != NULL);
        p[0] = words;
        p[words - 1] = words ^ (uint64_t)(uintptr_t)p;
        // Only this thread uses every second slot.
        unsigned slot = (unsigned)((seed >> 50) % SLOTS * 2 + (uintptr_t)arg % 2);
        uint64_t *old = pmalloc_get_root(slot);
        pmalloc_set_root(slot, p);
        if (old) {
            if (old[old[0] - 1] != (old[0] ^ (uint64_t)(uintptr_t)old))
                pm_abort(PM_EV_INTERNAL_FAULT, "block %p has changed", (void *)old);
            pm_free(old);
        }
    }
}

static void churning(void) {
    settings();
    setenv("PMALLOC_DECAY_MS", "0", 1);
    pm_process_before_main();
    uint64_t rooted = 0;
    for (unsigned slot = 0; slot < 2 * SLOTS; slot++) {
        uint64_t *p = pmalloc_get_root(slot);
        if (!p)
            continue;
        rooted++;
        MUST(pm_usable_size(p) >= p[0] * 8);
        MUST(p[p[0] - 1] == (p[0] ^ (uint64_t)(uintptr_t)p));
    }
    // What else looks alive does so by chance: a word like an address.
    MUST(pm_process_recovery()->live_objects >= rooted);
    MUST(pm_process_recovery()->live_objects <= 2 * rooted);
    alarm_ms(15);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, churn, (void *)3) == 0);
    churn((void *)2);
}

static void test_two_threads_killed(void) {
    for (int i = 0; i < 40 && !check_failures; i++)
        CHECK_EQ(in_child(churning), 128 + SIGKILL);
}

int main(void) {
    RUN_CHILD(killed_again_and_again);
    RUN_CHILD(closed_again_and_again);
    RUN_CHILD(killed_and_closed_by_turns);
    RUN_CHILD(rootless);
    RUN_CHILD(slots);
    RUN_CHILD(recovered_blocks_are_ordinary);
    RUN_CHILD(freeing_everything);
    RUN_CHILD(fork);
    RUN_CHILD(two_threads_killed);
    return CHECK_DONE();
}
