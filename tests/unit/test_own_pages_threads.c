// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The pages that the process has stored to are found by any of its threads: also when the first
// one, whose memory /proc/self would show, has ended.
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/os.h"
#include "check.h"
#include "media/own_pages.h"

#define PAGE 4096
#define PAGES 64
#define STORED 3

static void count(char *at, size_t len, void *found) {
    (void)at;
    *(size_t *)found += len / PAGE;
}

// The pages found in a private mapping of a file, of which STORED were stored to. All pages where
// neither way can be had.
static size_t found_pages(void) {
    size_t found = 0;
    int fd = memfd_create("test", 0);
    if (ftruncate(fd, PAGES * PAGE) != 0)
        return 0;
    char *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    for (size_t i = 0; i < PAGES; i++)
        (void)*(volatile char *)(map + i * PAGE);
    for (size_t i = 0; i < STORED; i++)
        map[i * 7 * PAGE] = 1;
    pm_own_pages(map, PAGES * PAGE, count, &found);
    munmap(map, PAGES * PAGE);
    close(fd);
    return found;
}

static void test_by_the_first_thread(void) { CHECK_EQ(found_pages(), STORED); }

static void *go_on(void *unused) {
    while (pm_os_state(getpid()) != 'Z') // of the first thread
        sched_yield();
    _exit((int)found_pages());
    return unused;
}

static void test_by_another_when_the_first_has_ended(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, go_on, NULL) != 0)
            _exit(0);
        pthread_exit(NULL);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), STORED);
}

int main(void) {
    RUN(by_the_first_thread);
    RUN(by_another_when_the_first_has_ended);
    return CHECK_DONE();
}
