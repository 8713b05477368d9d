// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A program that pmalloc-info --leaks looks at again and again. It says a line when it is busy, and
// ends when it is told something: "ok" and what it has done, or what was wrong.
//
//   sleepers   a thread in each call that waits, with no signal for any of them: none may return
//              EINTR. One more thread counts queued signals: none may be lost
//   busy       threads that allocate, fill, check and free; each keeps some vector registers
//   moving     the same, and they move addresses from block to block: at any moment each stands in
//              one block, or in a register alone. Nothing is ever lost.
//              Told "e" it executes a program that sleeps for a second
//   filtered   has a seccomp filter, which allows everything
//   other      looks like a program with another build of the library
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <time.h>
#include <unistd.h>

static _Atomic bool over;
static _Atomic long rounds, failures;
static int wire[2];
static void *volatile kept[64];

static void check(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    failures++;
}

// ---- sleepers -----------------------------------------------------------------------------------

static void by_poll(void) {
    struct pollfd end = {.fd = wire[0], .events = POLLIN};
    check(poll(&end, 1, 20) >= 0, "poll");
}

static void by_epoll(void) {
    struct epoll_event event;
    static int set;
    if (!set)
        set = epoll_create1(0);
    check(epoll_wait(set, &event, 1, 20) == 0, "epoll_wait");
}

static void by_nanosleep(void) {
    const struct timespec time = {.tv_nsec = 20000000};
    check(nanosleep(&time, NULL) == 0, "nanosleep");
}

static void by_select(void) {
    struct timeval time = {.tv_usec = 20000};
    check(select(0, NULL, NULL, NULL, &time) == 0, "select");
}

static void by_futex(void) {
    static sem_t never;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += 20000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    check(sem_timedwait(&never, &end) == -1 && errno == ETIMEDOUT, "sem_timedwait");
}

static void by_sigtimedwait(void) {
    const struct timespec time = {.tv_nsec = 20000000};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    check(sigtimedwait(&set, NULL, &time) == -1 && errno == EAGAIN, "sigtimedwait");
}

static void by_semtimedop(void) {
    static int set = -1;
    const struct timespec time = {.tv_nsec = 20000000};
    struct sembuf down = {.sem_op = -1};
    if (set < 0)
        set = semget(IPC_PRIVATE, 1, 0600);
    check(semtimedop(set, &down, 1, &time) == -1 && errno == EAGAIN, "semtimedop");
    if (over)
        semctl(set, 0, IPC_RMID);
}

static void by_read(void) {
    char byte;
    check(read(wire[0], &byte, 1) == 1, "read");
}

static void (*const sleepers[])(void) = {by_poll,  by_epoll,        by_nanosleep,  by_select,
                                         by_futex, by_sigtimedwait, by_semtimedop, by_read};
#define SLEEPERS (sizeof sleepers / sizeof *sleepers)

static void *sleep_often(void *which) {
    while (!over) {
        ((void (**)(void))which)[0]();
        rounds++;
    }
    return NULL;
}

static _Atomic long heard;

static void hear(int number) {
    (void)number;
    heard++;
}

static void *be_told(void *unused) {
    const struct timespec time = {.tv_nsec = 300000};
    sigset_t set;
    (void)unused;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    signal(SIGRTMIN, hear);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    while (!over)
        nanosleep(&time, NULL);
    return NULL;
}

static void sleep_and_tell(void) {
    pthread_t thread[SLEEPERS], ear;
    const struct timespec time = {.tv_nsec = 1000000};
    long told = 0;
    sigset_t all;
    sigfillset(&all);
    check(pipe(wire) == 0, "pipe");
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_create(&ear, NULL, be_told, NULL);
    for (size_t i = 0; i < SLEEPERS; i++)
        pthread_create(&thread[i], NULL, sleep_often, (void *)(uintptr_t)&sleepers[i]);
    puts("busy");
    fflush(stdout);
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&in, 1, 0) == 0) {
        told += sigqueue(getpid(), SIGRTMIN, (union sigval){0}) == 0;
        nanosleep(&time, NULL);
    }
    for (unsigned i = 0; i < 2000 && heard < told; i++)
        nanosleep(&time, NULL);
    check(heard == told, "signals");
    over = true;
    check(write(wire[1], "x", 1) == 1, "write");
    for (size_t i = 0; i < SLEEPERS; i++)
        pthread_join(thread[i], NULL);
    pthread_join(ear, NULL);
}

// ---- busy ---------------------------------------------------------------------------------------

#define BLOCKS 500

static size_t size_of(uint64_t n) { return n % 50 ? 16 + n % 900 : 20000 + n % 50000; }

// Whether vector registers hold what they held.
static bool vectors_stay(uint64_t n) {
    uint64_t low, high;
    __asm__ volatile("movq %2, %%xmm15\n\tmovq %2, %%xmm3\n\tmovl $2000, %%ecx\n"
                     "1:\tdecl %%ecx\n\tjnz 1b\n\tmovq %%xmm15, %0\n\tmovq %%xmm3, %1"
                     : "=&r"(low), "=&r"(high)
                     : "r"(n)
                     : "xmm3", "xmm15", "rcx");
    return low == n && high == n;
}

static void *allocate(void *seed) {
    unsigned char *block[BLOCKS] = {0};
    size_t size[BLOCKS];
    uint64_t n = (uintptr_t)seed;
    while (!over) {
        n = n * 6364136223846793005u + 1442695040888963407u;
        size_t i = (n >> 33) % BLOCKS;
        if (block[i] && (block[i][0] != (unsigned char)i || block[i][size[i] - 1] != 0x5a))
            failures++;
        free(block[i]);
        size[i] = size_of(n >> 40);
        block[i] = malloc(size[i]);
        block[i][0] = (unsigned char)i;
        block[i][size[i] - 1] = 0x5a;
        if (n >> 60 == 0)
            failures += !vectors_stay(n);
        rounds++;
    }
    for (size_t i = 0; i < BLOCKS; i++)
        free(block[i]);
    return NULL;
}

static void be_busy(void) {
    pthread_t thread[4];
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, allocate, (void *)(i + 1));
    puts("busy");
    fflush(stdout);
    getchar();
    over = true;
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

// ---- moving -------------------------------------------------------------------------------------

#define SLOTS 20000

// A slot in each block of a long list, and what stands there is a block that nothing else names.
struct holder {
    struct holder *next;
    char *volatile held, rest[200];
};
static struct holder *volatile first_of[4];

static void *move(void *which) {
    struct holder *at = first_of[(uintptr_t)which];
    uint64_t n = (uintptr_t)which + 1;
    while (!over) {
        n = n * 6364136223846793005u + 1442695040888963407u;
        struct holder *to = at;
        for (unsigned i = n >> 58; i && to->next; i--)
            to = to->next;
        char *moves = at->held;
        at->held = NULL;
        if (n >> 40 & 1) {
            free(moves);
            moves = malloc(size_of(n >> 20));
        }
        char *other = to->held;
        to->held = moves;
        if (!at->held)
            at->held = other;
        at = to->next ? to->next : first_of[(uintptr_t)which];
        rounds++;
    }
    return NULL;
}

static void keep_moving(void) {
    pthread_t thread[4];
    for (uintptr_t i = 0; i < 4; i++) {
        for (unsigned n = 0; n < SLOTS; n++) {
            struct holder *one = calloc(1, sizeof *one);
            one->next = first_of[i];
            one->held = malloc(16 + n % 900);
            first_of[i] = one;
        }
        pthread_create(&thread[i], NULL, move, (void *)i);
    }
    puts("busy");
    fflush(stdout);
    if (getchar() == 'e')
        execlp("sleep", "sleep", "1", NULL);
    over = true;
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

// ---- what is refused ----------------------------------------------------------------------------

static uint64_t door[4] = {0x6b61656c63616d70u, 0x9d3c5b7f21e8a604u, 0, 1};

static void wait_to_be_told(const char *how) {
    struct sock_filter all = {.code = BPF_RET | BPF_K, .k = SECCOMP_RET_ALLOW};
    struct sock_fprog filter = {1, &all};
    door[2] = (uintptr_t)door;
    if (strcmp(how, "filtered") == 0) {
        check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
        check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "filter");
    }
    puts("busy");
    fflush(stdout);
    getchar();
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    for (size_t i = 0; i < 64; i++)
        kept[i] = malloc(10000);
    if (strcmp(argv[1], "busy") == 0)
        be_busy();
    else if (strcmp(argv[1], "moving") == 0)
        keep_moving();
    else if (strcmp(argv[1], "sleepers") == 0)
        sleep_and_tell();
    else
        wait_to_be_told(argv[1]);
    printf("%s %ld\n", failures ? "wrong" : "ok", rounds);
    return failures != 0;
}
