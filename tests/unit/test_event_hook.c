// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// When the command of an event is started: outside of the allocator, or at once if the process is
// about to end.
#include "base/event_hook.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bare_child.h"
#include "base/cancel.h"
#include "base/options.h"
#include "check.h"
#include "threads/thread_memory.h"

static char folder[] = "/dev/shm/pmalloc-unit-hook-XXXXXX";

static const char *path(const char *name) {
    static char text[128];
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

static bool is_there(const char *name) {
    struct stat st;
    return stat(path(name), &st) == 0;
}

static bool comes(const char *name) {
    for (int i = 0; i < 10000 && !is_there(name); i++)
        usleep(1000);
    return is_there(name);
}

static void begin(void) {
    char *variables[] = {(char *)(uintptr_t) "PATH=/usr/bin:/bin",
                         (char *)(uintptr_t) "PMALLOC_X=1", NULL};
    char on[400];
    struct pm_error err;
    snprintf(on, sizeof on,
             "no-space:test -z \"$PMALLOC_X\" && touch %s/later; bad-free:touch %s/handler;"
             "heap-lost:touch %s/once; commit-failed:touch %s/unlocked",
             folder, folder, folder, folder);
    pm_options_default();
    CHECK_EQ(pm_option_set("PMALLOC_ON", on, &err), PM_OK);
    CHECK_EQ(pm_event_hooks_begin(variables, &err), PM_OK);
}

static void test_within_a_request(void) {
    struct pm_cancel outer = pm_cancel_hold(), inner = pm_cancel_hold();
    pm_locks_held++;
    pm_event(PM_EV_NO_SPACE, "first");
    pm_locks_held--;
    pm_cancel_release(inner);
    CHECK(pm_postponed); // nobody has started it, so no time need pass to see that
    CHECK(!is_there("later"));
    pm_cancel_release(outer);
    CHECK(!pm_postponed);
    CHECK(comes("later"));
}

static int number;
static void handle(int signal) { number = signal; }

static void test_beside_a_signal(void) {
    struct pm_cancel held = pm_cancel_hold();
    signal(SIGUSR1, handle);
    pm_event(PM_EV_BAD_FREE, "first");
    raise(SIGUSR1);
    pm_cancel_release(held);
    CHECK_EQ(number, SIGUSR1);
    CHECK(comes("handler"));
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    CHECK(!sigismember(&mask, SIGUSR2));
}

static void test_what_is_critical(void) {
    struct pm_cancel held = pm_cancel_hold();
    pm_event(PM_EV_HEAP_LOST, "at once");
    CHECK(!pm_postponed);
    CHECK(comes("once"));
    pm_cancel_release(held);
}

// A thread that holds a lock and is in no request, as PMAlloc's own may be.
static void test_with_a_lock(void) {
    pm_locks_held++;
    pm_event(PM_EV_COMMIT_FAILED, "first");
    CHECK(pm_postponed && !is_there("unlocked"));
    pm_locks_held--;
    pm_cancel_release(pm_cancel_hold());
    CHECK(comes("unlocked"));
}

static long give(void *arg) { return *(int *)arg; }
static long close_a_copy(void *arg) {
    (void)arg;
    for (int fd = 0; fd < 64; fd++)
        close(fd);
    return 0;
}

static _Atomic uint32_t alive = 1;
static _Atomic bool leaves;
static long wait_to_leave(void *unused) {
    (void)unused;
    errno = 5; // its own
    while (!leaves)
        sched_yield();
    return 0;
}

static void test_child_beside(void) {
    static struct pm_thread_memory memory;
    CHECK(pm_thread_memory(&memory, 16384, NULL, 0));
    errno = 3;
    long id = pm_bare_child_beside(wait_to_leave, memory.stack_top, memory.pointer, &alive);
    CHECK(id > 0 && alive == 1);
    CHECK(waitpid(-1, NULL, 0) < 0 && errno == ECHILD);
    leaves = true;
    while (alive)
        sched_yield();
    CHECK_EQ(pm_bare_child_status(id), 0);
}

static void test_child(void) {
    static char stack[16384] __attribute__((aligned(16)));
    int value = 77, before = dup(1);
    CHECK_EQ(pm_bare_child_status(pm_bare_child(give, &value, stack + sizeof stack)), 77);
    CHECK_EQ(pm_bare_child_status(pm_bare_child(close_a_copy, NULL, stack + sizeof stack)), 0);
    CHECK(before > 0 && fcntl(before, F_GETFD) >= 0);
    close(before);
    CHECK(waitpid(-1, NULL, __WALL) < 0);
    pm_bare_child_forbid();
    CHECK(pm_bare_child(give, &value, stack + sizeof stack) < 0);
}

int main(void) {
    if (!mkdtemp(folder))
        return 1;
    begin();
    RUN(within_a_request);
    RUN(beside_a_signal);
    RUN(what_is_critical);
    RUN(with_a_lock);
    RUN(child_beside);
    RUN(child);
    const char *names[] = {"later", "handler", "once", "unlocked"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(path(names[i]));
    rmdir(folder);
    return CHECK_DONE();
}
