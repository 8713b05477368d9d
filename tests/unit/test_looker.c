// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The looker: what it opens has no number in the program's table; what it cannot do is said; whom
// it does not serve.
#include "base/looker.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "base/proc.h"
#include "check.h"

static char text[4096];

static int lowest(void) {
    int fd = dup(0);
    close(fd);
    return fd;
}

static bool names(const char *name, void *found) {
    *(int *)found |= atoi(name) == (int)pm_os_looker;
    return true;
}

static void test_without(void) {
    CHECK(!pm_looker_is_there());
    CHECK(pm_looker_open("self/stat", O_RDONLY) == PM_LOOKER_NONE);
    CHECK(pm_looker_text("self/stat", text, sizeof text) == PM_LOOKER_NONE);
    CHECK(pm_os_own_count() == 0 && !pm_os_is_own(0));
    int fd = pm_proc_open("self/stat", O_RDONLY);
    CHECK(fd >= 0 && !(fd & PM_LOOKER_FD));
    pm_proc_close(fd);
    pm_looker_stop();
}

// `proc`: of /proc, kept by the looker too; -1.
static void test_looks(int proc) {
    int low = lowest(), found = 0;
    CHECK(pm_looker_start(proc) && pm_looker_is_there());
    CHECK(pm_looker_start(proc));
    CHECK(pm_os_own_count() == 1 && pm_os_is_own(pm_os_looker));
    int fd = pm_proc_open("self/task", O_DIRECTORY);
    CHECK(fd & PM_LOOKER_FD);
    CHECK(lowest() == low);
    CHECK(pm_proc_each_name(fd, names, &found) && found);
    pm_proc_close(fd);
    CHECK(pm_proc_text("self/stat", text, sizeof text) > 0 && atoi(text) == getpid());
    CHECK(pm_proc_text("self/stat", text, 5) == 4 && strlen(text) == 4);
    errno = 0;
    CHECK(pm_proc_open("self/no such file", O_RDONLY) == -1 && errno == ENOENT);
    CHECK(pm_proc_text("self/no such file", text, sizeof text) == -1 && errno == ENOENT);
    CHECK(text[0] == '\0');
    CHECK(pm_proc_read(PM_LOOKER_FD | 900, text, 1) == -1 && errno == EBADF);
    for (int i = 0; i < 64; i++) // of the copy of this table it has nothing
        if (i != (proc < 0 ? 0 : proc))
            CHECK(pm_proc_call(SYS_fcntl, PM_LOOKER_FD | i, F_GETFD, 0, 0) == -1);
    pm_looker_halted(true);
    CHECK(!pm_looker_is_there() && pm_looker_text("self/stat", text, 9) == PM_LOOKER_NONE);
    pm_looker_halted(false);
    pm_looker_stop();
    CHECK(!pm_looker_is_there() && pm_os_own_count() == 0);
}

static void test_own_files(void) {
    int low = lowest();
    CHECK(pm_looker_start(-1));
    int here = open("/dev/null", O_RDONLY), fd = pm_proc_open_mine("fd", O_DIRECTORY);
    CHECK(here == low && fd & PM_LOOKER_FD);
    CHECK(pm_proc_read(fd, text, 1) == -1 && errno == EISDIR);
    snprintf(text, sizeof text, "%d", here);
    char link[64] = "";
    CHECK(pm_proc_call(SYS_readlinkat, fd, (long)text, (long)link, sizeof link) > 0);
    CHECK(strcmp(link, "/dev/null") == 0);
    pm_proc_close(fd);
    close(here);
    pm_looker_stop();
}

// A child has none, whether it knows that or not, and may start its own.
static void test_forked(void) {
    int status = -1;
    CHECK(pm_looker_start(-1));
    pid_t child = fork();
    if (child == 0) {
        bool right = pm_proc_text("self/stat", text, sizeof text) > 0 && atoi(text) == getpid();
        pm_looker_forked();
        right = right && pm_looker_start(-1) && pm_looker_is_there();
        right = right && pm_proc_text("self/stat", text, sizeof text) > 0;
        _exit(right && atoi(text) == getpid() ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pm_looker_is_there());
    pm_looker_stop();
}

#define THREADS 4
#define ROUNDS 2000

static void *asks(void *unused) {
    char own[256];
    for (int i = 0; i < ROUNDS; i++)
        if (pm_proc_text("self/stat", own, sizeof own) <= 0 || atoi(own) != getpid())
            return "wrong";
    return unused;
}

static void test_many_ask(void) {
    pthread_t thread[THREADS];
    CHECK(pm_looker_start(-1));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, asks, NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        CHECK(pthread_join(thread[i], &wrong) == 0 && !wrong);
    }
    pm_looker_stop();
}

int main(void) {
    int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    test_without();
    test_looks(-1);
    test_looks(proc);
    CHECK(dup2(proc, 40) == 40);
    test_looks(40);
    test_own_files();
    test_forked();
    test_many_ask();
    return CHECK_DONE();
}
