// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Threads that store to many pages, each in an order of its own, so that what is found at a start
// tells whether it is one instant:
//
//   count   page c % pages gets c, and c grows: each page has the last number that was its turn
//   toggle  page c % pages is what it was the time before last, and a counter tells c
//
// rounds SECONDS [MODE]   says how far each thread was, stores for so long (0: until it is killed)
//   storm    four threads, which store to 500 MB of pages a second, as far as the machine goes
//   sections the same, and 16 stores are a critical section; two threads have one lock. The first
//            thread says something all the time
//   churn    beside it, blocks come and go whose pages were stored to
//   direct   a file is open for direct I/O
//   passing  the same, but only for 0.3 s
//   record   the program has a record of stores of its own, on one of its blocks
//   daemon   goes on in a child
//   busy     its waits are over at once, so it is never idle
//   slow     one thread, 300 ms of work between two waits, which are over at once
//   loads    one thread stores to 300 MB of pages at once, and then waits
//   works    the same, but it goes on and its waits are over at once
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "holds.h"

enum { PAGE = 4096, MOST = 4 };
static uint64_t areas_made = 2, pages = 3000, pause_us = 300;

struct area {
    uint64_t made; // by toggle: how many were made
    char *pages;
};
struct area *areas; // the root
static _Atomic bool over;

static _Atomic uint64_t *word_of(const struct area *a, uint64_t page) {
    return (_Atomic uint64_t *)(void *)(a->pages + page * PAGE + page % 500 * 8);
}

static void count(struct area *a) {
    uint64_t c = a->made;
    *word_of(a, c % pages) = c + 1;
    *(volatile uint64_t *)&a->made = c + 1;
}

static void toggle(struct area *a) {
    uint64_t c = a->made;
    *word_of(a, c % pages) ^= 1;
    *(volatile uint64_t *)&a->made = c + 1;
}

static uint64_t check(const struct area *a, bool toggles) {
    uint64_t c = a->made, wrong = 0;
    for (uint64_t page = 0; page < pages; page++) {
        uint64_t turns = c / pages + (page < c % pages), has = *word_of(a, page);
        uint64_t wants = toggles ? turns & 1 : turns ? (turns - 1) * pages + page + 1 : 0;
        uint64_t next = toggles ? wants ^ 1 : c + 1;
        bool may_be_next = page == c % pages && has == next; // the counter is stored afterwards
        wrong += has != wants && !may_be_next;
    }
    return wrong;
}

// The counter may be one behind.
static void mend(struct area *a, bool toggles) {
    uint64_t c = a->made, page = c % pages, turns = c / pages;
    uint64_t has = *word_of(a, page);
    a->made += toggles ? has != (turns & 1) : has == c + 1;
}

static bool busy, slow, locks;
static pthread_mutex_t lock[MOST / 2];

static void wait_us(uint64_t us) {
    struct pollfd ready = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (busy)
        REQUIRE(poll(&ready, 1, 1000) == 1);
    else
        usleep((useconds_t)us);
}

static void wait_and_say(void) {
    wait_us(1000);
    REQUIRE(!locks || write(STDOUT_FILENO, ".", 1) == 1);
}

static void turn(uint64_t which) {
    for (unsigned i = 0; i < (slow ? 3008 : 16); i++) {
        which % 2 ? toggle(&areas[which]) : count(&areas[which]);
        for (double end = now() + 0.0001; slow && now() < end;) {
        }
    }
}

static void *store(void *number) {
    uint64_t which = (uint64_t)(uintptr_t)number;
    for (; !over; wait_us(pause_us)) { // a commit finds some pages of many
        if (locks)
            REQUIRE(pthread_mutex_lock(&lock[which / 2]) == 0);
        turn(which);
        if (locks)
            REQUIRE(pthread_mutex_unlock(&lock[which / 2]) == 0);
    }
    return NULL;
}

static void *churn(void *unused) {
    (void)unused;
    for (unsigned turn = 1; !over; turn++) {
        char *block = malloc((size_t)(turn % 40 + 1) << 16);
        REQUIRE(block);
        memset(block, (int)turn, (size_t)(turn % 40 + 1) << 16);
        free(block);
        usleep(200);
    }
    return NULL;
}

static void keep_record(void) {
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP};
    REQUIRE(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0);
    uint64_t at = ((uint64_t)(uintptr_t)areas[0].pages + PAGE) & ~(uint64_t)(PAGE - 1);
    struct uffdio_register range = {.range = {at, PAGE}, .mode = UFFDIO_REGISTER_MODE_WP};
    if (ioctl(fd, UFFDIO_REGISTER, &range) != 0)
        printf("refused %d\n", errno);
}

static void make(void) {
    areas = calloc(areas_made, sizeof *areas);
    REQUIRE(areas);
    for (unsigned i = 0; i < areas_made; i++)
        REQUIRE((areas[i].pages = calloc(pages, PAGE)) != NULL);
}

static void load(void) {
    for (uint64_t page = 0; page < pages; page++)
        count(&areas[0]);
    puts("loaded");
    for (uint64_t n = 0;; n++, wait_us(1000)) {
        for (double end = now() + 0.001; busy && now() < end;) {
        }
        if (n % 256 == 0)
            count(&areas[0]);
    }
}

int main(int argc, char **argv) {
    double seconds = atof(argv[1]), end;
    const char *mode = argc > 2 ? argv[2] : "";
    pthread_t thread[MOST + 1];
    unsigned threads = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    bool passing = strcmp(mode, "passing") == 0;
    int direct = passing || strcmp(mode, "direct") == 0 ? open(argv[0], O_RDONLY | O_DIRECT) : 0;
    REQUIRE(direct >= 0);
    if (strcmp(mode, "daemon") == 0 && fork() != 0)
        return 0;
    locks = strcmp(mode, "sections") == 0;
    if (locks || strcmp(mode, "storm") == 0)
        areas_made = MOST, pages = 8192, pause_us = 400;
    slow = strcmp(mode, "slow") == 0;
    areas_made = slow ? 1 : areas_made;
    busy = slow || strcmp(mode, "busy") == 0 || strcmp(mode, "works") == 0;
    bool loads = strcmp(mode, "loads") == 0 || strcmp(mode, "works") == 0;
    if (loads)
        areas_made = 1, pages = 76800;
    if (!areas)
        make();
    for (unsigned i = 0; i < areas_made; i++) {
        printf("%llu wrong, %llu made\n", (unsigned long long)check(&areas[i], i % 2),
               (unsigned long long)areas[i].made);
        mend(&areas[i], i % 2);
    }
    if (loads)
        load();
    for (uintptr_t i = 0; i < areas_made; i++)
        REQUIRE(pthread_create(&thread[threads++], NULL, store, (void *)i) == 0);
    if (strcmp(mode, "churn") == 0)
        REQUIRE(pthread_create(&thread[threads++], NULL, churn, NULL) == 0);
    if (passing)
        REQUIRE(usleep(300000) == 0 && close(direct) == 0);
    for (end = now() + seconds / 2; seconds == 0 || now() < end;)
        slow ? (void)usleep(1000) : wait_and_say();
    if (strcmp(mode, "record") == 0)
        keep_record();
    for (end = now() + seconds / 2; now() < end;)
        usleep(1000);
    over = true;
    while (threads)
        REQUIRE(pthread_join(thread[--threads], NULL) == 0);
    return 0;
}
