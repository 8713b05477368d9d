// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The end of a program that has a persistent heap: what requests, stores and other threads do after
// it, and ends that interrupt the allocator or each other.
#include <pthread.h>

#include "session.h"

// ---- after the end ------------------------------------------------------------------------------

static struct pm_clean vouched;

// Destructors of other libraries still allocate, free and store, at the same addresses: in memory
// of their own.
static void late_requests(void) {
    session();
    char *small = pm_malloc(100), *large = pm_malloc(100000), *huge = pm_malloc(8 << 20);
    memset(small, 3, 100);
    memset(large, 4, 100000);
    huge[8 << 19] = 5; // the rest of it was never touched
    pm_process_end();
    vouched = pm_heap.super->state.clean;
    CHECK_EQ(vouched.images_known, 1);
    CHECK(large[99999] == 4 && huge[8 << 19] == 5 && huge[8 << 18] == 0);
    struct node *list = pmalloc_get_root(0);
    CHECK_EQ(list_length(list), 1000);
    errno = 0;
    CHECK(pmalloc_set_root(0, small) == -1 && errno == ENOTSUP);
    for (struct node *n = list, *next; n; n = next) {
        next = n->next;
        memset(n, 0x55, sizeof *n);
        pm_free(n);
    }
    pm_free(large);
    pm_free(huge);
    pm_trim();
    char *moved = pm_realloc(small, 5000);
    CHECK(moved && moved[0] == 3 && moved[99] == 3);
    for (size_t size = 1; size < 64 << 20; size *= 2) { // beyond the file's end, too
        char *fresh = pm_calloc(size, 1);
        MUST(fresh != NULL);
        CHECK(fresh[0] == 0 && fresh[size - 1] == 0);
        memset(fresh, 6, size);
        if (size % 3)
            pm_free(fresh);
    }
    pid_t pid = fork(); // its child outlives it
    if (pid == 0) {
        CHECK(pm_heap.super == NULL && moved[99] == 3);
        pm_free(pm_malloc(100000));
        _exit(check_failures != 0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    pm_process_end(); // once is enough
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_CLEAN);
    CHECK(memcmp(&vouched, &pm_heap.super->state.clean, sizeof vouched) == 0);
}

static void test_requests_after_the_end(void) {
    expected_live = 0;
    CHECK_EQ(in_child(late_requests), 0);
    expected_live = 1001; // the nodes, all whole, and the large block
    CHECK_EQ(in_child(closed_session), 0);
    expected_live = 0;
}

// ---- others at the end --------------------------------------------------------------------------

// Pushes nodes to slot 0. After the end of the program that is refused, and what it then does must
// not reach the heap.
static void *pusher(void *arg) {
    for (bool open = true;;) {
        struct node *list = pmalloc_get_root(0);
        list = list_add(list, list ? list->value + 1 : 0);
        open = open && pmalloc_set_root(0, list) == 0;
        for (struct node *n = list; n && !open; n = n->next)
            n->value = ~0ull;
    }
    return arg;
}

static void *sleeper(void *arg) {
    for (;;)
        pause();
    return arg;
}

static void end_among_others(void) {
    settings();
    pm_process_before_main();
    struct node *list = pmalloc_get_root(0);
    uint64_t before = list_length(list), after;
    CHECK(before >= expected_live);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    MUST(pthread_create(&thread, NULL, pusher, NULL) == 0);
    do {
        struct node *now = pmalloc_get_root(0);
        after = now ? now->value + 1 : 0;
    } while (after < before + 200);
    pm_process_end();
    CHECK(!pmalloc_is_persistent());
    // Here the allocator's code is the program's, so the pusher may be held amid a request.
    uint64_t state = pm_heap.super->state.state;
    CHECK(state == PM_STATE_CLEAN || state == PM_STATE_DIRTY);
    usleep(2000);
}

static void test_end_among_other_threads(void) {
    for (uint64_t i = 0; i < 10 && !check_failures; i++) {
        expected_live = i * 200;
        CHECK_EQ(in_child(end_among_others), 0);
    }
    expected_live = 0;
}

// ---- a signal in the midst ----------------------------------------------------------------------

static void hold(struct pm_lock *lock) {
    if (lock == &pm_heap.shard[0].lock)
        pm_lock_raw(lock);
}

static void let_go(struct pm_lock *lock) {
    if (lock == &pm_heap.shard[0].lock)
        pm_unlock_raw(lock);
}

// exit() in a signal handler that has interrupted the allocator: no hang, no close, and what comes
// then is not kept.
static void end_within_the_allocator(void) {
    session();
    pm_process_each_lock(hold);
    CHECK(pm_process_end());
    CHECK(!pmalloc_is_persistent());
    struct node *list = pmalloc_get_root(0);
    for (struct node *n = list; n; n = n->next)
        n->value = ~0ull;
    list->next = NULL;
    CHECK_EQ(pm_heap.super->state.state, PM_STATE_DIRTY);
    pm_process_each_lock(let_go);
}

static void end_within_the_allocator_among_others(void) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, sleeper, NULL) == 0);
    end_within_the_allocator();
}

static void test_end_within_the_allocator(void) {
    expected_live = 0;
    CHECK_EQ(in_child(end_within_the_allocator), 0);
    expected_live = 1001;
    CHECK_EQ(in_child(end_within_the_allocator_among_others), 0);
    expected_live = 0;
}

// ---- exit() again, in another thread ------------------------------------------------------------

// Whoever comes out of the end finds the heap cut off.
static void *ender(void *arg) {
    atomic_fetch_add((_Atomic unsigned *)arg, 1);
    CHECK(pm_process_end());
    CHECK(!pmalloc_is_persistent());
    atomic_fetch_add((_Atomic unsigned *)arg, 1);
    return NULL;
}

static void end_twice(void) {
    pthread_t thread[2];
    _Atomic unsigned steps = 0;
    session();
    pm_process_each_lock(hold); // the first one waits for it
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&thread[i], NULL, ender, &steps) == 0);
    while (atomic_load(&steps) < 2)
        usleep(1000);
    usleep(50000);
    CHECK_EQ(atomic_load(&steps), 2);
    pm_process_each_lock(let_go);
    for (int i = 0; i < 2; i++)
        MUST(pthread_join(thread[i], NULL) == 0);
}

// The other one comes in a signal handler, and has interrupted the allocator. Nobody waits for its
// lock any more.
static void *ender_with_lock(void *arg) {
    pm_process_each_lock(hold);
    atomic_fetch_add((_Atomic unsigned *)arg, 1);
    while (atomic_load((_Atomic unsigned *)arg) < 2)
        usleep(100);
    usleep(20000);
    CHECK(pm_process_end());
    CHECK(!pmalloc_is_persistent());
    return sleeper(NULL);
}

static void end_beside_one_with_a_lock(void) {
    pthread_t thread;
    _Atomic unsigned steps = 0;
    session();
    alarm(30); // rather than hang
    void *large = pm_malloc(100000);
    MUST(pthread_create(&thread, NULL, ender_with_lock, &steps) == 0);
    while (atomic_load(&steps) < 1)
        usleep(100);
    atomic_fetch_add(&steps, 1);
    CHECK(pm_process_end());
    CHECK(!pmalloc_is_persistent());
    pm_free(large); // the lock is never given back
    large = pm_malloc(100000);
    CHECK(large != NULL);
}

static void test_end_twice(void) {
    expected_live = 0;
    CHECK_EQ(in_child(end_twice), 0);
    expected_live = 1001;
    CHECK_EQ(in_child(end_beside_one_with_a_lock), 0);
    expected_live = 0;
}

int main(void) {
    RUN_CHILD(requests_after_the_end);
    RUN_CHILD(end_among_other_threads);
    RUN_CHILD(end_within_the_allocator);
    RUN_CHILD(end_twice);
    return CHECK_DONE();
}
