// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Unusual threads, and signals of the program's own, while all threads are held thousands of times.
// MODE SECONDS.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "holds.h"

static double end;
static _Atomic unsigned long turns;
static char **arguments;

// ---- signals of the program's -------------------------------------------------------------------

static int made_pipe[2], pair[2], queue;
static _Atomic int handled, receiver;
static _Atomic int state;    // counts: the receiver is about to sleep, has woken
static _Atomic bool removed; // what the receiver waits for is gone

static void on_signal(int unused) {
    (void)unused;
    handled++;
}

static void interrupted(long result) { REQUIRE(removed || (result == -1 && errno == EINTR)); }

static void by_nanosleep(void) {
    struct timespec left = {0, 0}, time = {30, 0};
    interrupted(nanosleep(&time, &left));
    REQUIRE(left.tv_sec >= 1 && left.tv_sec <= 30);
}
static void by_sleep(void) {
    unsigned left = sleep(30);
    REQUIRE(left >= 1 && left <= 30);
}
static void by_poll(void) { interrupted(poll(NULL, 0, 30000)); }
static void by_select(void) { interrupted(select(0, NULL, NULL, NULL, NULL)); }
static void by_epoll(void) {
    struct epoll_event event;
    int fd = epoll_create1(0);
    interrupted(epoll_wait(fd, &event, 1, 30000));
    close(fd);
}
static void by_pause(void) { interrupted(pause()); }
static void by_sigsuspend(void) {
    sigset_t none;
    sigemptyset(&none);
    interrupted(sigsuspend(&none));
}
static void by_read(void) {
    char c;
    interrupted(read(made_pipe[0], &c, 1));
}
static void by_recv(void) {
    char c;
    interrupted(recv(pair[0], &c, 1, 0));
}
static void by_msgrcv(void) {
    long message[2];
    interrupted(msgrcv(queue, message, sizeof(long), 0, 0));
}
static void by_waitpid(void) {
    static pid_t child;
    if (!child && (child = fork()) == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        poll(NULL, 0, 60000);
        _exit(0);
    }
    interrupted(waitpid(child, NULL, 0));
}
// The kernel begins these again after a signal of PMAlloc's. Another description has the locks.
static int locked;
static char fifo[] = "/tmp/holds_odd.XXXXXX";
static void by_flock(void) { interrupted(flock(locked, LOCK_EX)); }
static void by_lock(void) {
    struct flock lock = {.l_type = F_WRLCK};
    interrupted(fcntl(locked, F_OFD_SETLKW, &lock));
}
static void by_open(void) { interrupted(open(fifo, O_RDONLY)); }

static void take_locks(void) {
    struct flock lock = {.l_type = F_WRLCK};
    int fd = mkstemp(fifo);
    REQUIRE(fd >= 0 && (locked = open(fifo, O_RDWR)) >= 0 && unlink(fifo) == 0);
    REQUIRE(flock(fd, LOCK_EX) == 0 && fcntl(fd, F_OFD_SETLKW, &lock) == 0);
    REQUIRE(mkfifo(fifo, 0600) == 0);
}

static const struct {
    void (*call)(void);
    long number[2]; // of its system call
} calls[] = {
    {by_nanosleep, {SYS_clock_nanosleep, SYS_nanosleep}},
    {by_sleep, {SYS_clock_nanosleep, SYS_nanosleep}},
    {by_poll, {SYS_poll, SYS_ppoll}},
    {by_select, {SYS_select, SYS_pselect6}},
    {by_epoll, {SYS_epoll_wait, SYS_epoll_pwait}},
    {by_pause, {SYS_pause, SYS_ppoll}},
    {by_sigsuspend, {SYS_rt_sigsuspend, SYS_rt_sigsuspend}},
    {by_read, {SYS_read, SYS_read}},
    {by_recv, {SYS_recvfrom, SYS_recvfrom}},
    {by_msgrcv, {SYS_msgrcv, SYS_msgrcv}},
    {by_waitpid, {SYS_wait4, SYS_wait4}},
    {by_flock, {SYS_flock, SYS_flock}},
    {by_lock, {SYS_fcntl, SYS_fcntl}},
    {by_open, {SYS_openat, SYS_open}},
};
#define CALLS (sizeof calls / sizeof *calls)

static void *receive(void *unused) {
    (void)unused;
    receiver = (int)syscall(SYS_gettid);
    for (size_t i = 0; state >= 0; i++) {
        state++;
        calls[i % CALLS].call();
        state++;
    }
    return NULL;
}

// Whether the receiver sleeps in one of these system calls, and not because it is held.
static bool sleeps_in(const long *number) {
    char path[64], text[128];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", receiver);
    int fd = open(path, O_RDONLY);
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return text[0] >= '0' && text[0] <= '9' && (atol(text) == number[0] || atol(text) == number[1]);
}

// Each signal runs the handler once and ends one call: not more, not less, and not later.
static void signals_are_seen(void) {
    pthread_t thread;
    const struct sigaction action = {.sa_handler = on_signal};
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    REQUIRE(pipe(made_pipe) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    REQUIRE((queue = msgget(IPC_PRIVATE, 0600)) >= 0);
    take_locks();
    REQUIRE(pthread_create(&thread, NULL, receive, NULL) == 0);
    for (int i = 0; now() < end || i < 2 * (int)CALLS; i++, turns++) {
        while (state != 2 * i + 1 || !sleeps_in(calls[(size_t)i % CALLS].number))
            usleep(200);
        REQUIRE(pthread_kill(thread, SIGUSR1) == 0);
        for (double until = now() + 10; state == 2 * i + 1; usleep(200))
            REQUIRE(now() < until);
        REQUIRE(handled == i + 1);
    }
    removed = true;
    msgctl(queue, IPC_RMID, NULL);
    unlink(fifo);
    printf("turns %lu\n", turns);
    exit(0); // with the receiver in a call, and a child that ends after its sleep
}

// The kernel repeats the call after a handler with SA_RESTART; the program sees nothing.
static void *read_bytes(void *unused) {
    (void)unused;
    char c;
    receiver = (int)syscall(SYS_gettid);
    for (; state >= 0; state++)
        REQUIRE(read(made_pipe[0], &c, 1) == 1);
    return NULL;
}

static void signals_restart(void) {
    static const long reading[2] = {SYS_read, SYS_read};
    pthread_t thread;
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0 && pipe(made_pipe) == 0);
    REQUIRE(pthread_create(&thread, NULL, read_bytes, NULL) == 0);
    for (int i = 0; now() < end; i++, turns++) {
        while (!receiver || !sleeps_in(reading))
            usleep(200);
        REQUIRE(pthread_kill(thread, SIGUSR1) == 0);
        while (handled != i + 1)
            usleep(200);
        REQUIRE(state == i && write(made_pipe[1], "x", 1) == 1);
        while (state != i + 1)
            usleep(200);
    }
}

// A stop and its end are no signal to a sleeper.
static void stops(void) {
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        for (double until = now() + 0.6; now() < until; usleep(5000)) {
            kill(parent, SIGSTOP);
            usleep(3000);
            kill(parent, SIGCONT);
        }
        _exit(0);
    }
    for (; now() < end; turns++) {
        const struct timespec time = {0, 30000000};
        double begin = now();
        REQUIRE(nanosleep(&time, NULL) == 0 && now() - begin >= 0.03);
        REQUIRE(poll(NULL, 0, 10) == 0);
    }
    REQUIRE(waitpid(child, NULL, 0) == child);
}

// ---- threads ------------------------------------------------------------------------------------

static void *sleep_often(void *unused) {
    (void)unused;
    for (; now() < end; turns++)
        poll(NULL, 0, 3);
    return NULL;
}

// libc runs setuid() in all threads, by the signal that holds use. So their poll() may fail.
static void ids_are_set(void) {
    pthread_t thread[3];
    for (int i = 0; i < 3; i++)
        REQUIRE(pthread_create(&thread[i], NULL, sleep_often, NULL) == 0);
    while (now() < end)
        REQUIRE(setuid(getuid()) == 0 && setgid(getgid()) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

// No hold is possible while a thread blocks every signal and runs on.
static void *block_all(void *unused) {
    uint64_t all = ~0ull;
    REQUIRE(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof all) == 0);
    for (double until = now() + 0.3; now() < until; turns++) {
    }
    return unused;
}
static void signals_are_blocked(void) {
    while (now() < end) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, block_all, NULL) == 0);
        pthread_join(thread, NULL);
        usleep(100000);
    }
}

static ucontext_t contexts[3];
static _Atomic bool done;
static void run_context(int n) {
    while (now() < end) {
        REQUIRE(poll(NULL, 0, 1) == 0);
        turns++;
        REQUIRE(swapcontext(&contexts[n], &contexts[(n + 1) % 3]) == 0);
    }
    done = true;
    setcontext(&contexts[0]);
}
static void coroutines_run(void) {
    for (volatile int n = 1; n < 3; n++) {
        REQUIRE(getcontext(&contexts[n]) == 0);
        contexts[n].uc_stack.ss_size = 65536;
        contexts[n].uc_stack.ss_sp = malloc(65536);
        makecontext(&contexts[n], (void (*)(void))run_context, 1, n);
    }
    while (!done)
        swapcontext(&contexts[0], &contexts[1]);
}

static void end_slowly(void *block) {
    REQUIRE(poll(NULL, 0, 1) == 0);
    free(block);
    free(malloc(100000));
}
static pthread_key_t key;
static void *exit_thread(void *unused) {
    (void)unused;
    pthread_setspecific(key, malloc(100));
    pthread_exit(malloc(10));
}
static void *spin(void *unused) {
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    for (*(_Atomic bool *)unused = true;;) {
    }
    return NULL;
}
static void threads_end(void) {
    REQUIRE(pthread_key_create(&key, end_slowly) == 0);
    for (; now() < end; turns++) {
        pthread_t leaving, spinning;
        _Atomic bool spins = false;
        void *result;
        REQUIRE(pthread_create(&leaving, NULL, exit_thread, NULL) == 0);
        REQUIRE(pthread_create(&spinning, NULL, spin, &spins) == 0);
        while (!spins)
            sched_yield();
        REQUIRE(pthread_cancel(spinning) == 0 && pthread_join(spinning, &result) == 0);
        REQUIRE(result == PTHREAD_CANCELED && pthread_join(leaving, &result) == 0);
        free(result);
    }
}

// A thread that libc does not know, with the thread-local storage of its maker.
static int count_raw(void *unused) {
    (void)unused;
    for (int i = 0; i < 3000000; i++)
        turns++;
    return 0;
}
static void raw_threads_run(void) {
    char *stack = malloc(65536);
    while (now() < end) {
        static int tid;
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                    CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
        int id = clone(count_raw, stack + 65536, flags, NULL, &tid, NULL, &tid);
        REQUIRE(id > 0);
        while (__atomic_load_n(&tid, __ATOMIC_ACQUIRE) == id)
            syscall(SYS_futex, &tid, FUTEX_WAIT, id, NULL, NULL, 0L);
    }
}

static pthread_mutex_t over_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over_cond = PTHREAD_COND_INITIALIZER;
static bool over;
static void *wait_for_end(void *number) {
    if ((uintptr_t)number & 1) {
        REQUIRE(poll(NULL, 0, 300) == 0);
    } else {
        pthread_mutex_lock(&over_mutex);
        while (!over)
            pthread_cond_wait(&over_cond, &over_mutex);
        pthread_mutex_unlock(&over_mutex);
    }
    turns++;
    return NULL;
}
#define MANY 1000
static void many_threads_sleep(void) {
    static pthread_t thread[MANY];
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    REQUIRE(pthread_attr_setstacksize(&attr, 65536) == 0);
    for (uintptr_t i = 0; i < MANY; i++)
        REQUIRE(pthread_create(&thread[i], &attr, wait_for_end, (void *)i) == 0);
    while (now() < end)
        usleep(10000);
    pthread_mutex_lock(&over_mutex);
    over = true;
    pthread_cond_broadcast(&over_cond);
    pthread_mutex_unlock(&over_mutex);
    for (int i = 0; i < MANY; i++)
        pthread_join(thread[i], NULL);
}

static void execs(void) {
    pthread_t thread;
    char left[16];
    int more = arguments[3] ? atoi(arguments[3]) : 20;
    end = now() + 0.02;
    REQUIRE(pthread_create(&thread, NULL, sleep_often, NULL) == 0);
    usleep(10000);
    snprintf(left, sizeof left, "%d", more - 1);
    turns++;
    if (more)
        execl("/proc/self/exe", arguments[0], arguments[1], arguments[2], left, NULL);
}

static const struct mode {
    const char *name;
    void (*run)(void);
} modes[] = {
    {"interrupt", signals_are_seen},
    {"restart", signals_restart},
    {"stop", stops},
    {"setuid", ids_are_set},
    {"block", signals_are_blocked},
    {"coroutines", coroutines_run},
    {"end", threads_end},
    {"clone", raw_threads_run},
    {"many", many_threads_sleep},
    {"exec", execs},
};

int main(int argc, char **argv) {
    REQUIRE(argc >= 3);
    arguments = argv;
    end = now() + atof(argv[2]);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, argv[1]) == 0) {
            modes[i].run();
            printf("turns %lu\n", turns);
            return 0;
        }
    return 2;
}
