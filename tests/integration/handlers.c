// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Signal handlers that make the calls of signal-safety(7) while the program is in the allocator, in
// a fork, in a write or in a system call of its own. `handlers KIND COUNT`: each kind of work goes
// on until COUNT handlers have run. Status 3: a handler or the program has found a wrong value.
//
//   malloc, fork, write   what the handlers interrupt. There is one thread: with several, fork() in
//                         a handler that has interrupted libc's own fork() waits for ever in libc
//   alike                 every way to ask for a handler, and what the program sees of it
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
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
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { BLOCKS = 500, WORDS = 4 };

void *keep;

static volatile sig_atomic_t handled;
static int pipe_of[2], pair[2], file, limit;
static sem_t posted;
static char *block[BLOCKS];
static pthread_t first;

#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            static const char text[] = "handlers: wrong: " #x "\n";                                \
            (void)!write(STDERR_FILENO, text, sizeof text - 1);                                    \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)

// ---- what handlers call -------------------------------------------------------------------------

static void wait_for(pid_t child) {
    int status;
    pid_t ended;
    while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
    }
    MUST(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

// The child has the parent's blocks as they are, and the allocator works in it.
static void forks(void) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        char *p = malloc(3000);
        MUST(p);
        memset(p, 1, 3000);
        free(p);
        _exit(7);
    }
    wait_for(child);
}

static void executes(void) {
    static char *const argv[] = {"sh", "-c", "exit 7", NULL};
    static char *const env[] = {NULL};
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        execve("/bin/sh", argv, env);
        _exit(1);
    }
    wait_for(child);
}

static void waits(void) {
    struct pollfd ready = {.fd = pipe_of[1], .events = POLLOUT};
    struct timespec none = {0, 1000};
    struct timeval zero = {0, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pair[0], &set);
    MUST(poll(&ready, 1, 0) == 1 && ready.revents == POLLOUT);
    MUST(select(pair[0] + 1, NULL, &set, NULL, &zero) == 1);
    MUST(pselect(0, NULL, NULL, NULL, &none, NULL) == 0);
    MUST(nanosleep(&none, NULL) == 0);
}

static void tells(void) {
    char sent = (char)handled, got = 0;
    struct iovec one = {&sent, 1};
    MUST(write(pair[0], &sent, 1) == 1 && read(pair[1], &got, 1) == 1 && got == sent);
    MUST(send(pair[0], &sent, 1, 0) == 1 && recv(pair[1], &got, 1, 0) == 1);
    MUST(sendmsg(pair[0], &(struct msghdr){.msg_iov = &one, .msg_iovlen = 1}, 0) == 1);
    MUST(recvfrom(pair[1], &got, 1, 0, NULL, NULL) == 1 && got == sent);
    MUST(write(file, &sent, 1) == 1 && lseek(file, 0, SEEK_SET) == 0);
    MUST(fsync(file) == 0 && ftruncate(file, 0) == 0);
}

static void asks(void) {
    struct stat st;
    struct timespec now;
    sigset_t mask;
    int duplicate = dup(file);
    MUST(duplicate > 0 && fstat(duplicate, &st) == 0 && close(duplicate) == 0);
    MUST(clock_gettime(CLOCK_REALTIME, &now) == 0 && getpid() > 0 && kill(getpid(), 0) == 0);
    MUST(sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && pthread_kill(pthread_self(), 0) == 0);
    MUST(sem_post(&posted) == 0 && waitpid(getpid(), NULL, WNOHANG) == -1);
    MUST(access("/", R_OK) == 0 && mkdir("/", 0700) != 0 && errno == EEXIST);
}

static void allocates(void) {
    char *p = malloc(100), *q = malloc(50000);
    MUST(p && q);
    memset(q, 2, 50000);
    free(q);
    free(p);
}

static void handler(int number) {
    static void (*const step[])(void) = {waits, tells, asks, forks, allocates, tells, forks, waits};
    static unsigned turn;
    int saved = errno;
    (void)number;
    if (turn % 64 == 63)
        executes();
    else
        step[turn % (sizeof step / sizeof *step)]();
    turn++;
    handled++;
    errno = saved;
}

// ---- what they interrupt ------------------------------------------------------------------------

static void work_on_blocks(unsigned *seed) {
    static const size_t sizes[] = {16, 24, 64, 100, 300, 2000, 9000, 40000, 200000, 700000};
    for (int i = 0; i < 50; i++) {
        unsigned at = (unsigned)rand_r(seed) % BLOCKS;
        size_t size = sizes[(unsigned)rand_r(seed) % 10];
        if (block[at])
            MUST(memcmp(block[at], &block[at], sizeof block[at]) == 0);
        free(block[at]);
        MUST((block[at] = malloc(size)) != NULL);
        memcpy(block[at], &block[at], sizeof block[at]);
    }
}

static void interrupt(const char *kind) {
    unsigned seed = 1;
    const struct itimerval often = {{0, 500}, {0, 500}}, never = {0};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    while (handled < limit) {
        if (!strcmp(kind, "malloc"))
            work_on_blocks(&seed);
        else if (!strcmp(kind, "fork"))
            forks();
        else
            MUST(write(pipe_of[1], "x", 1) == 1 && read(pipe_of[0], &(char){0}, 1) == 1);
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    work_on_blocks(&seed);
}

// ---- what the program sees ----------------------------------------------------------------------

static volatile int value_seen, code_seen, calls;
static volatile bool blocked_itself, blocked_other, on_stack;
static char stack[1 << 16];

static void look(int number, siginfo_t *info, void *context) {
    sigset_t now;
    char here;
    const ucontext_t *u = context;
    sigprocmask(SIG_BLOCK, NULL, &now);
    blocked_itself = sigismember(&now, number);
    blocked_other = sigismember(&now, SIGUSR2);
    on_stack = (uintptr_t)&here - (uintptr_t)stack < sizeof stack;
    MUST(!sigismember(&u->uc_sigmask, SIGHUP));
    value_seen = info->si_value.sival_int;
    code_seen = info->si_code;
    calls++;
    sem_post(&posted);
}

static void plain(int number) {
    (void)number;
    calls++;
}

static void *queues(void *wanted) {
    for (int i = 1; i <= *(int *)wanted; i++) {
        pthread_sigqueue(first, SIGUSR1, (union sigval){.sival_int = i});
        while (sem_wait(&posted) != 0) {
        }
    }
    return NULL;
}

// The signals arrive while this thread allocates, and some of them in the allocator.
static void arrives_as(int flags) {
    struct sigaction action = {.sa_sigaction = look, .sa_flags = flags | SA_SIGINFO}, was;
    unsigned seed = 2;
    int wanted = flags & SA_RESETHAND ? 1 : limit;
    pthread_t other;
    calls = 0;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR2);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    MUST(sigaction(SIGUSR1, NULL, &was) == 0 && was.sa_sigaction == look);
    MUST((was.sa_flags & 0x7fffffff) == ((flags | SA_SIGINFO) & 0x7fffffff) ||
         (was.sa_flags & ~0x04000000) == (flags | SA_SIGINFO)); // SA_RESTORER
    MUST(pthread_create(&other, NULL, queues, &wanted) == 0);
    while (calls < wanted) {
        work_on_blocks(&seed);
        if (!calls)
            continue;
        MUST(code_seen == SI_QUEUE && blocked_other && on_stack == !!(flags & SA_ONSTACK));
        MUST(blocked_itself == !(flags & SA_NODEFER));
    }
    MUST(pthread_join(other, NULL) == 0 && value_seen == wanted);
    MUST(sigaction(SIGUSR1, NULL, &was) == 0);
    MUST((was.sa_handler == SIG_DFL) == !!(flags & SA_RESETHAND));
}

struct kernels {
    void *handler;
    unsigned long flags;
    void *restorer;
    uint64_t mask;
};

static void alike(void) {
    struct sigaction was;
    struct kernels raw, same;
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    sigset_t mask;
    first = pthread_self();
    MUST(signal(SIGUSR1, plain) == SIG_DFL && signal(SIGUSR1, plain) == plain);
    MUST(sigaction(SIGUSR1, NULL, &was) == 0 && was.sa_handler == plain);
    MUST(raise(SIGUSR1) == 0 && calls == 1);
    MUST(sigset(SIGUSR1, plain) == plain);
    MUST(sigset(SIGUSR1, SIG_HOLD) == plain && sigset(SIGUSR1, plain) == SIG_HOLD);
    MUST(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &raw, 8) == 0);
    MUST(raw.handler == (void *)(uintptr_t)plain);
    MUST(syscall(SYS_rt_sigaction, SIGUSR1, &raw, &same, 8) == 0);
    MUST(syscall(SYS_rt_sigaction, SIGUSR1, (void *)8, NULL, 8) == -1 && errno == EFAULT);
    MUST(same.handler == raw.handler && raise(SIGUSR1) == 0 && calls == 2);
    MUST(siginterrupt(SIGUSR1, 1) == 0 && signal(SIGUSR1, SIG_IGN) == plain);
    MUST(signal(SIGUSR1, SIG_DFL) == SIG_IGN && signal(0, plain) == SIG_ERR);
    MUST(sigaction(SIGKILL, &was, NULL) == -1 && errno == EINVAL);
    MUST(__sysv_signal(SIGUSR1, plain) == SIG_DFL && raise(SIGUSR1) == 0 && calls == 3);
    MUST(signal(SIGUSR1, SIG_DFL) == SIG_DFL && sigaltstack(&other, NULL) == 0);
    arrives_as(0);
    arrives_as(SA_NODEFER);
    arrives_as(SA_ONSTACK | SA_RESTART);
    arrives_as(SA_RESETHAND);
    MUST(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
    for (int s = 1; s <= 64; s++)
        MUST(sigismember(&mask, s) <= 0);
    other.ss_flags = SS_DISABLE;
    MUST(sigaltstack(&other, NULL) == 0);
}

int main(int argc, char **argv) {
    char path[] = "/tmp/pmtest-handlers-XXXXXX";
    limit = argc > 2 ? atoi(argv[2]) : 100;
    MUST(argc > 1 && pipe(pipe_of) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    MUST((file = mkstemp(path)) >= 0 && unlink(path) == 0 && sem_init(&posted, 0, 0) == 0);
    if (!strcmp(argv[1], "alike"))
        alike();
    else
        interrupt(argv[1]);
    for (int i = 0; i < BLOCKS; i++)
        free(block[i]);
    puts("right");
    return 0;
}
