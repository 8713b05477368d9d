// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// What is a reason for a commit under PMALLOC_COMMIT=output and =idle, and what is none. The root
// `value` gets a number, and then the program does one thing.
//
//   triggers say NAME N    says "N" to standard output by this function, then spins for ever
//   triggers wait NAME N   waits for ever by this function, after the line "ready"
//   triggers check         prints the value
//   triggers talk THREADS  each thread counts up in the heap, and says its count; a signal handler
//                          says something all the time
//   triggers change        for each line "N PAGES": stores N to so many pages, and says N
//   triggers child         forks; the child says something and ends
#define _GNU_SOURCE
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

uint64_t value;
struct counts {
    _Atomic uint64_t of[16];
} * counts;

#define OUT STDOUT_FILENO

static void spin(void) {
    for (volatile int go = 1; go;) {
    }
}

// ---- what says something ------------------------------------------------------------------------

static char text[32];
static size_t length;

static struct iovec vector(void) { return (struct iovec){text, length}; }

static int file_with_text(void) {
    int fd = memfd_create("text", 0);
    (void)!write(fd, text, length);
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static void say_write(void) { (void)!write(OUT, text, length); }
static void say_writev(void) {
    struct iovec v = vector();
    (void)!writev(OUT, &v, 1);
}
static void say_send(void) { send(OUT, text, length, 0); }
static void say_sendto(void) { sendto(OUT, text, length, 0, NULL, 0); }
static void say_sendmsg(void) {
    struct iovec v = vector();
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    sendmsg(OUT, &m, 0);
}
static void say_sendmmsg(void) {
    struct iovec v = vector();
    struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
    sendmmsg(OUT, &m, 1, 0);
}
static void say_sendfile(void) { sendfile(OUT, file_with_text(), NULL, length); }
static void say_splice(void) { splice(file_with_text(), NULL, OUT, NULL, length, 0); }
static void say_vmsplice(void) {
    struct iovec v = vector();
    vmsplice(OUT, &v, 1, 0);
}
static void say_tee(void) {
    int ends[2];
    if (pipe(ends) != 0)
        return;
    struct iovec v = vector();
    vmsplice(ends[1], &v, 1, 0); // a commit of its own, so the value is set again
    value++;
    tee(ends[0], OUT, length, 0);
}
static void say_printf(void) {
    printf("%s", text);
    fflush(stdout);
}
static void say_puts_unbuffered(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    fputs(text, stdout);
}
static void say_large_fwrite(void) {
    char *large = malloc(100000);
    memset(large, 'x', 100000);
    memcpy(large, text, length);
    fwrite(large, 1, 100000, stdout);
}
static void say_wide(void) {
    wprintf(L"%s", text);
    fflush(stdout);
}
static void say_dprintf(void) { dprintf(OUT, "%s", text); }
static void say_popen(void) {
    FILE *to = popen("cat", "w");
    fputs(text, to);
    fflush(to);
}
static void say_fdopen(void) {
    FILE *to = fdopen(dup(OUT), "w");
    fputs(text, to);
    fclose(to);
}
static void say_at_exit(void) {
    fputs(text, stdout);
    exit(0);
}
static void say_then_exit(void) {
    (void)!write(OUT, text, length);
    _exit(0);
}
static void say_nothing(void) {
    int fd = open("/dev/null", O_WRONLY);
    (void)!write(fd, text, length);
    fd = file_with_text();
    (void)!write(fd, text, length);
    long number = 1; // SYS_write, round libc: not covered
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(OUT), "S"(text), "d"(length)
                     : "rcx", "r11", "memory");
}

// ---- what waits ---------------------------------------------------------------------------------

static int quiet[2]; // a pipe without data
static sigset_t no_signals, one_signal;
static struct timespec year = {.tv_sec = 365 * 24 * 3600};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore;

static int quiet_socket(void) {
    int ends[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 ? ends[0] : -1;
}

static struct timespec in_a_year(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += year.tv_sec;
    return t;
}

static char buffer[64];
static struct pollfd polled(void) { return (struct pollfd){quiet[0], POLLIN, 0}; }
static void wait_read(void) { (void)!read(quiet[0], buffer, sizeof buffer); }
static void wait_readv(void) {
    struct iovec v = {buffer, sizeof buffer};
    (void)!readv(quiet[0], &v, 1);
}
static void wait_recv(void) { recv(quiet_socket(), buffer, sizeof buffer, 0); }
static void wait_recvfrom(void) { recvfrom(quiet_socket(), buffer, sizeof buffer, 0, NULL, NULL); }
static void wait_recvmsg(void) {
    struct iovec v = {buffer, sizeof buffer};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    recvmsg(quiet_socket(), &m, 0);
}
static void wait_accept(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0); // listen() gives it a free port
    listen(fd, 1);
    accept(fd, NULL, NULL);
}
static void wait_poll(void) {
    struct pollfd p = polled();
    poll(&p, 1, -1);
}
static void wait_ppoll(void) {
    struct pollfd p = polled();
    ppoll(&p, 1, NULL, NULL);
}
static void wait_select(void) { select(0, NULL, NULL, NULL, NULL); }
static void wait_pselect(void) { pselect(0, NULL, NULL, NULL, &year, NULL); }
static void wait_epoll_wait(void) {
    struct epoll_event e;
    epoll_wait(epoll_create1(0), &e, 1, -1);
}
static void wait_nanosleep(void) { nanosleep(&year, NULL); }
static void wait_clock_nanosleep(void) { clock_nanosleep(CLOCK_MONOTONIC, 0, &year, NULL); }
static void wait_sleep(void) { sleep(100000); }
static void wait_usleep(void) { usleep(1000000000); }
static void wait_pause(void) { pause(); }
static void wait_sigsuspend(void) { sigsuspend(&no_signals); }
static void wait_sigwait(void) {
    int number;
    sigwait(&one_signal, &number);
}
static void wait_sem_wait(void) { sem_wait(&semaphore); }
static void wait_cond_wait(void) { pthread_cond_wait(&condition, &mutex); }
static void wait_cond_timedwait(void) {
    struct timespec t = in_a_year(CLOCK_REALTIME);
    pthread_cond_timedwait(&condition, &mutex, &t);
}
static void wait_cnd_wait(void) {
    cnd_t c;
    mtx_t m;
    cnd_init(&c);
    mtx_init(&m, mtx_plain);
    mtx_lock(&m);
    cnd_wait(&c, &m);
}
static void wait_fgetc(void) { fgetc(fdopen(quiet[0], "r")); }
static void wait_getline(void) {
    char *line = NULL;
    size_t size = 0;
    (void)!getline(&line, &size, fdopen(quiet[0], "r"));
}
static void wait_msgrcv(void) {
    int queue = msgget(IPC_PRIVATE, 0600);
    struct msqid_ds state;
    if (fork() == 0) { // removes the queue when the parent is killed
        while (getppid() != 1 && msgctl(queue, IPC_STAT, &state) == 0 && state.msg_lrpid == 0)
            usleep(10000);
        msgctl(queue, IPC_RMID, NULL);
        _exit(0);
    }
    msgrcv(queue, buffer, 8, 0, 0);
}
static void wait_waitpid(void) {
    pid_t parent = getpid(), child = fork();
    while (child == 0 && getppid() == parent)
        usleep(10000);
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
}
static void *pausing(void *unused) {
    pause();
    return unused;
}
static void wait_join(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, pausing, NULL);
    pthread_join(thread, NULL);
}

// ---- what is no wait ----------------------------------------------------------------------------

static void *spinning(void *unused) {
    spin();
    return unused;
}
static void busy_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, spinning, NULL);
    pause();
}
static void *locking(void *unused) {
    pthread_mutex_lock(&mutex);
    return unused;
}
static void busy_mutex(void) { // the thread waits for a lock: it is in the middle of something
    pthread_t thread;
    pthread_create(&thread, NULL, locking, NULL);
    pause();
}
static uint64_t later;
static void spin_in_handler(int number) {
    (void)number;
    value = ~later;
    spin();
}
static void busy_handler(void) {
    later = ~value;
    value = 0;
    signal(SIGALRM, spin_in_handler);
    ualarm(200000, 0);
    pause();
}
static void busy_poll(void) {
    struct pollfd p = polled();
    for (;;)
        poll(&p, 1, 0);
}
static void busy_nonblocking(void) {
    fcntl(quiet[0], F_SETFL, O_NONBLOCK);
    for (;;)
        (void)!read(quiet[0], buffer, sizeof buffer);
}
static void busy_file(void) {
    int fd = open("/proc/self/exe", O_RDONLY);
    while (pread(fd, buffer, sizeof buffer, 0) > 0 && lseek(fd, 0, SEEK_SET) == 0)
        (void)!read(fd, buffer, sizeof buffer);
}
// Finds work at each wait.
static void ready_poll(void) {
    struct pollfd p = polled();
    (void)!write(quiet[1], "x", 1);
    for (;; value++, value--)
        poll(&p, 1, -1);
}

// ---- modes --------------------------------------------------------------------------------------

// clang-format off
#define SAYS(X)                                                                                    \
    X(write)                                                                                       \
    X(writev) X(send) X(sendto) X(sendmsg) X(sendmmsg) X(sendfile) X(splice) X(vmsplice) X(tee)    \
        X(printf) X(puts_unbuffered) X(large_fwrite) X(wide) X(dprintf) X(popen) X(fdopen)         \
            X(at_exit) X(then_exit) X(nothing)
#define WAITS(X)                                                                                   \
    X(read)                                                                                        \
    X(readv) X(recv) X(recvfrom) X(recvmsg) X(accept) X(poll) X(ppoll) X(select) X(pselect)        \
        X(epoll_wait) X(nanosleep) X(clock_nanosleep) X(sleep) X(usleep) X(pause) X(sigsuspend)    \
            X(sigwait) X(sem_wait) X(cond_wait) X(cond_timedwait) X(cnd_wait) X(fgetc) X(getline)  \
                X(msgrcv) X(waitpid) X(join)
// clang-format on
#define ROW(prefix, name) {#name, prefix##_##name},
#define SAY_ROW(name) ROW(say, name)
#define WAIT_ROW(name) ROW(wait, name)
static const struct way {
    const char *name;
    void (*go)(void);
} says[] = {SAYS(SAY_ROW){NULL, NULL}}, waits[] = {WAITS(WAIT_ROW){"busy_thread", busy_thread},
                                                   {"busy_mutex", busy_mutex},
                                                   {"busy_handler", busy_handler},
                                                   {"busy_poll", busy_poll},
                                                   {"busy_nonblocking", busy_nonblocking},
                                                   {"busy_file", busy_file},
                                                   {"ready_poll", ready_poll},
                                                   {NULL, NULL}};

static int go(const struct way *way, const char *name, const char *number) {
    while (way->name && strcmp(way->name, name) != 0)
        way++;
    if (!way->name)
        return 64;
    length = (size_t)snprintf(text, sizeof text, "%s\n", number);
    value = strtoull(number, NULL, 10);
    way->go();
    spin();
    return 1;
}

static _Atomic uint64_t handled;
static void say_in_handler(int number) {
    (void)number;
    char *p = malloc(100); // may have interrupted the allocator
    (void)!write(STDERR_FILENO, ".", p ? 1 : 0);
    free(p);
    atomic_fetch_add(&handled, 1);
}

static void *talk(void *arg) {
    unsigned i = (unsigned)(uintptr_t)arg;
    for (;;) {
        char line[64], *block = malloc(i * 100 + 1);
        uint64_t count = atomic_fetch_add(&counts->of[i], 1) + 1;
        int size = snprintf(line, sizeof line, "%u %llu\n", i, (unsigned long long)count);
        (void)!write(OUT, line, (size_t)size);
        free(block);
    }
    return NULL;
}

static int talk_all(unsigned threads) {
    struct itimerval often = {{0, 500}, {0, 500}};
    struct sigaction action = {.sa_handler = say_in_handler, .sa_flags = SA_RESTART};
    pthread_t thread;
    if (!counts)
        counts = calloc(1, sizeof *counts);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (unsigned i = 1; i < threads; i++)
        pthread_create(&thread, NULL, talk, (void *)(uintptr_t)i);
    talk(NULL);
    return 0;
}

static int check(void) {
    printf("%llu\n", (unsigned long long)value);
    for (unsigned i = 0; counts && i < 16; i++)
        printf("%u %llu\n", i, (unsigned long long)counts->of[i]);
    return 0;
}

static uint64_t *pages; // a root, too
static int change(void) {
    unsigned long long number;
    unsigned count;
    pages = calloc(2048, 4096);
    while (scanf("%llu %u", &number, &count) == 2) {
        for (unsigned i = 0; i < count; i++)
            pages[i * 512] = number;
        value = number;
        printf("%llu\n", number);
        fflush(stdout);
    }
    return 0;
}

static int child(void) {
    value = 1;
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        value = 2;
        printf("child\n");
        exit(0);
    }
    waitpid(pid, &status, 0);
    value++;
    printf("parent %d\n", status);
    fflush(stdout);
    spin();
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    sigemptyset(&no_signals);
    sigemptyset(&one_signal);
    sigaddset(&one_signal, SIGUSR1);
    if (pipe(quiet) != 0 || sem_init(&semaphore, 0, 0) != 0)
        return 1;
    pthread_mutex_lock(&mutex);
    if (strcmp(what, "check") == 0)
        return check();
    if (strcmp(what, "say") == 0 && argc == 4)
        return go(says, argv[2], argv[3]);
    if (strcmp(what, "wait") == 0 && argc == 4)
        return go(waits, argv[2], argv[3]);
    if (strcmp(what, "talk") == 0 && argc == 3)
        return talk_all((unsigned)atoi(argv[2]));
    if (strcmp(what, "change") == 0)
        return change();
    if (strcmp(what, "child") == 0)
        return child();
    return 64;
}
