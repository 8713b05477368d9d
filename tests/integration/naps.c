// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that sleep.
//
//   naps ends    main calls exit(7) meanwhile: no thread wakes up; status 1: one does. Prints
//                what `ipcrm` should get then
//   naps woken   a handler of the program's wakes each one, with what is left of its time
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define LONG 100
#define WAYS 5
#define BYTES 8
#define RING_BYTES 4096 // more than the library's struct has

char *root;
static atomic_uint asleep;

// How many of its seconds are left, about; usleep() does not tell.
static long nap(unsigned way) {
    struct timespec time = {.tv_sec = LONG}, rest = {0}, until;
    switch (way) {
    case 0:
        return sleep(LONG);
    case 1:
        return usleep(LONG * 1000000u) == -1 && errno == EINTR ? LONG - 1 : 0;
    case 2:
        return nanosleep(&time, &rest) == -1 && errno == EINTR ? rest.tv_sec : 0;
    case 3:
        return thrd_sleep(&time, &rest) == -1 ? rest.tv_sec : 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LONG;
    if (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, &rest) != EINTR || rest.tv_sec)
        return 0;
    return clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &rest) == EINTR ? rest.tv_sec : 0;
}

// ---- whatever a thread may sleep in -------------------------------------------------------------

static int quiet[2], queue, semaphores, many;
static sigset_t none, usr2;
static atomic_bool one_woke;

static void make_quiet(void) {
    const struct timeval time = {.tv_sec = LONG};
    struct epoll_event event = {.events = EPOLLIN};
    sigaddset(&usr2, SIGUSR2);
    sigprocmask(SIG_BLOCK, &usr2, NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, quiet) != 0 || (many = epoll_create1(0)) < 0 ||
        setsockopt(quiet[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) != 0 ||
        epoll_ctl(many, EPOLL_CTL_ADD, quiet[0], &event) != 0 ||
        (queue = msgget(IPC_PRIVATE, 0600)) < 0 || (semaphores = semget(IPC_PRIVATE, 1, 0600)) < 0)
        abort();
}

// By PMAlloc's function, which finds that of liburing. Without the two, just a pause.
struct ring;
struct cqe;
extern int __io_uring_get_cqe(struct ring *ring, struct cqe **found, unsigned submit,
                              unsigned least, const sigset_t *mask) __attribute__((weak));
typedef int init_fn(unsigned n, struct ring *ring, unsigned flags);

static int wait_for_completion(void) {
    static long long ring[RING_BYTES / sizeof(long long)];
    struct cqe *found;
    void *liburing = dlopen("liburing.so.2", RTLD_NOW);
    init_fn *init;
    *(void **)&init = liburing ? dlsym(liburing, "io_uring_queue_init") : NULL;
    if (!init || !__io_uring_get_cqe || init(4, (struct ring *)ring, 0) != 0)
        return pause();
    errno = -__io_uring_get_cqe((struct ring *)ring, &found, 0, 1, NULL);
    return -1;
}

#define FDS (&(struct pollfd){quiet[0], POLLIN, 0}), 1
#define EVENTS many, (&(struct epoll_event){0}), 1
#define TIME (&(struct timespec){.tv_sec = LONG})
#define REST (&(struct timespec){0})
#define SETS 0, NULL, NULL, NULL, (&(struct timeval){.tv_sec = LONG})
#define LOWER (&(struct sembuf){.sem_op = -1}), 1
#define MASK_BYTES sizeof(uint64_t)
// clang-format off
#define SLEEPS(X)                                                                                  \
    X(nap(0)) X(nap(1)) X(nap(2)) X(nap(3)) X(nap(4))                                              \
    X(poll(FDS, -1)) X(poll(FDS, LONG * 1000)) X(ppoll(FDS, TIME, NULL))                           \
    X(select(SETS)) X(pselect(0, NULL, NULL, NULL, TIME, &none))                                   \
    X(epoll_wait(EVENTS, -1)) X(epoll_pwait(EVENTS, LONG * 1000, &none))                           \
    X(pause()) X(sigsuspend(&none))                                                                \
    X(sigwaitinfo(&usr2, NULL)) X(sigtimedwait(&usr2, NULL, TIME))                                 \
    X(semop(semaphores, LOWER)) X(semtimedop(semaphores, LOWER, TIME))                             \
    X(msgrcv(queue, (char[64]){0}, BYTES, 0, 0))                                                   \
    X(recv(quiet[0], (char[BYTES]){0}, BYTES, 0)) X(read(quiet[0], (char[BYTES]){0}, BYTES))       \
    X(wait_for_completion())                                                                       \
    X(syscall(SYS_nanosleep, TIME, NULL)) X(syscall(SYS_nanosleep, TIME, REST))                    \
    X(syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, TIME, NULL))                                \
    X(syscall(SYS_poll, FDS, -1)) X(syscall(SYS_poll, FDS, LONG * 1000))                           \
    X(syscall(SYS_ppoll, FDS, TIME, NULL, MASK_BYTES))                                             \
    X(syscall(SYS_select, SETS)) X(syscall(SYS_pselect6, 0, NULL, NULL, NULL, TIME, NULL))         \
    X(syscall(SYS_epoll_wait, EVENTS, -1))                                                         \
    X(syscall(SYS_epoll_pwait, EVENTS, -1, NULL, MASK_BYTES))                                      \
    X(syscall(SYS_pause)) X(syscall(SYS_rt_sigsuspend, &none, MASK_BYTES))                         \
    X(syscall(SYS_rt_sigtimedwait, &usr2, NULL, TIME, MASK_BYTES))                                 \
    X(syscall(SYS_semop, semaphores, LOWER)) X(syscall(SYS_semtimedop, semaphores, LOWER, TIME))   \
    X(syscall(SYS_msgrcv, queue, (char[64]){0}, BYTES, 0, 0))                                      \
    X(syscall(SYS_read, quiet[0], (char[BYTES]){0}, BYTES))                                        \
    X(syscall(SYS_recvfrom, quiet[0], (char[BYTES]){0}, BYTES, 0, NULL, NULL))
// clang-format on

#define NAME(call) #call,
static const char *const sleeps[] = {SLEEPS(NAME)};
#define SLEEPERS (sizeof sleeps / sizeof *sleeps)

static void sleep_in(size_t way) {
    size_t at = 0;
#define CASE(call)                                                                                 \
    if (way == at++)                                                                               \
        (void)!call;
    SLEEPS(CASE)
}

static void *never_wakes(void *way) {
    asleep++;
    sleep_in((size_t)way);
    dprintf(2, "%s returns: %s\n", sleeps[(size_t)way], strerror(errno));
    one_woke = true;
    return way;
}

// After the end of the heap: who was woken by it has time to say so.
static __attribute__((destructor)) void linger(void) {
    if (asleep == SLEEPERS)
        usleep(50000);
    if (one_woke)
        _exit(1);
}

static void *wakes(void *way) {
    long left = nap((unsigned)(size_t)way);
    asleep++;
    return (void *)(size_t)(left > 0 && left <= LONG);
}

static void hears(int number) { (void)number; }

static int ends(void) {
    pthread_t thread;
    make_quiet();
    printf("-q %d -s %d\n", queue, semaphores);
    for (size_t way = 0; way < SLEEPERS; way++)
        pthread_create(&thread, NULL, never_wakes, (void *)way);
    while (asleep < SLEEPERS)
        sched_yield();
    usleep(20000); // they sleep now, or soon
    exit(7);
}

static int woken(void) {
    struct sigaction action = {.sa_handler = hears};
    sigaction(SIGUSR1, &action, NULL);
    for (size_t way = 0; way < WAYS; way++) {
        pthread_t thread;
        void *right = NULL;
        unsigned before = asleep;
        pthread_create(&thread, NULL, wakes, (void *)way);
        while (asleep == before) {
            usleep(1000);
            pthread_kill(thread, SIGUSR1);
        }
        pthread_join(thread, &right);
        if (!right)
            printf("way %zu is wrong\n", way);
    }
    puts("right");
    return 0;
}

int main(int argc, char **argv) {
    root = malloc(1000);
    memset(root, 1, 1000);
    return argc > 1 && strcmp(argv[1], "ends") == 0 ? ends() : woken();
}
