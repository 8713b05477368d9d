// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Calls of libc that may sleep, by their names (preload/names/waits.c). SECONDS, [NAME].
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#include "holds_kinds.h"

static int made_pipe[2]; // nothing ever comes out of it
static struct pollfd nothing(void) { return (struct pollfd){made_pipe[0], POLLIN, 0}; }

// ---- calls with a timeout -----------------------------------------------------------------------

static void in_poll(void) {
    struct pollfd p = nothing();
    REQUIRE(poll(&p, 1, MS) == 0);
}

static void in_ppoll(void) {
    struct pollfd p = nothing();
    sigset_t none;
    sigemptyset(&none);
    REQUIRE(ppoll(&p, 1, &rest, &none) == 0);
}

static void in_select(void) {
    fd_set set;
    struct timeval time = rest_val;
    FD_ZERO(&set);
    FD_SET(made_pipe[0], &set);
    REQUIRE(select(made_pipe[0] + 1, &set, NULL, NULL, &time) == 0);
}

static void in_pselect(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(made_pipe[0], &set);
    REQUIRE(pselect(made_pipe[0] + 1, &set, NULL, NULL, &rest, NULL) == 0);
}

static int new_epoll(void) {
    struct epoll_event event = {.events = EPOLLIN};
    int fd = epoll_create1(0);
    REQUIRE(fd >= 0 && epoll_ctl(fd, EPOLL_CTL_ADD, made_pipe[0], &event) == 0);
    return fd;
}

static void in_epoll_wait(void) {
    struct epoll_event event;
    int fd = new_epoll();
    REQUIRE(epoll_wait(fd, &event, 1, MS) == 0);
    close(fd);
}

static void in_epoll_pwait(void) {
    struct epoll_event event;
    sigset_t none;
    int fd = new_epoll();
    sigemptyset(&none);
    REQUIRE(epoll_pwait(fd, &event, 1, MS, &none) == 0);
    close(fd);
}

static void in_epoll_pwait2(void) {
    struct epoll_event event;
    int fd = epoll_create1(0);
    int got = epoll_pwait2(fd, &event, 1, &rest, NULL);
    if (got == -1 && errno == ENOSYS)
        usleep(MS * 1000);
    else
        REQUIRE(got == 0);
    close(fd);
}

static void in_nanosleep(void) { REQUIRE(nanosleep(&rest, NULL) == 0); }
static void in_usleep(void) { REQUIRE(usleep(MS * 1000) == 0); }
static void in_thrd_sleep(void) { REQUIRE(thrd_sleep(&rest, NULL) == 0); }
static void in_clock_nanosleep(void) {
    REQUIRE(clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, NULL) == 0);
}
static void in_clock_nanosleep_until(void) {
    struct timespec time = at(CLOCK_REALTIME);
    REQUIRE(clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &time, NULL) == 0);
}

static void in_sem_timedwait(void) {
    struct timespec time = at(CLOCK_REALTIME);
    sem_t sem;
    sem_init(&sem, 0, 0);
    REQUIRE(sem_timedwait(&sem, &time) == -1 && errno == ETIMEDOUT);
    sem_destroy(&sem);
}

static void in_cond_timedwait(void) {
    struct timespec time = at(CLOCK_REALTIME);
    pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    int error;
    while ((error = pthread_cond_timedwait(&cond, &mutex, &time)) == 0) {
    }
    REQUIRE(error == ETIMEDOUT);
    pthread_mutex_unlock(&mutex);
}

static void in_mutex_timedlock(void) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // one thread comes here, twice
    struct timespec time = at(CLOCK_REALTIME);
    pthread_mutex_trylock(&mutex);
    REQUIRE(pthread_mutex_timedlock(&mutex, &time) == ETIMEDOUT);
}

static void in_semtimedop(void) {
    struct sembuf take = {0, -1, 0};
    int id = semget(IPC_PRIVATE, 1, 0600);
    REQUIRE(id >= 0 && semtimedop(id, &take, 1, &rest) == -1 && errno == EAGAIN);
    semctl(id, 0, IPC_RMID);
}

static void in_sigtimedwait(void) {
    sigset_t set;
    siginfo_t info;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    REQUIRE(sigtimedwait(&set, &info, &rest) == -1 && errno == EAGAIN);
}

static void in_mq_timedreceive(void) {
    char name[40], text[64];
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 64};
    struct timespec time = at(CLOCK_REALTIME);
    snprintf(name, sizeof name, "/holds-%d", (int)getpid());
    mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
    if (queue < 0 && errno == ENOSYS)
        return;
    mq_unlink(name);
    REQUIRE(mq_timedreceive(queue, text, 64, NULL, &time) == -1 && errno == ETIMEDOUT);
    mq_close(queue);
}

// ---- sockets with a timeout ---------------------------------------------------------------------

static void timeouts_of(int fd) {
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &rest_val, sizeof rest_val) == 0);
    REQUIRE(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &rest_val, sizeof rest_val) == 0);
}

static void in_recv(void) {
    char c;
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    timeouts_of(pair[0]);
    REQUIRE(recv(pair[0], &c, 1, 0) == -1 && errno == EAGAIN);
    close(pair[0]);
    close(pair[1]);
}

static void in_send(void) {
    static char block[65536];
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    while (send(pair[0], block, sizeof block, MSG_DONTWAIT) > 0) {
    }
    timeouts_of(pair[0]);
    REQUIRE(send(pair[0], block, 1000, 0) == -1 && errno == EAGAIN);
    close(pair[0]);
    close(pair[1]);
}

static void in_accept_and_connect(void) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t len = sizeof name;
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client[8], n = 0, error = 0;
    timeouts_of(server);
    REQUIRE(bind(server, (struct sockaddr *)&name, sizeof(sa_family_t)) == 0);
    REQUIRE(listen(server, 0) == 0);
    double begin = now();
    REQUIRE(accept(server, NULL, NULL) == -1 && errno == EAGAIN && now() - begin >= MS / 1000.0);
    REQUIRE(getsockname(server, (struct sockaddr *)&name, &len) == 0);
    for (; n < 8 && !error; n++) {
        client[n] = socket(AF_UNIX, SOCK_STREAM, 0);
        timeouts_of(client[n]);
        error = connect(client[n], (struct sockaddr *)&name, len) == 0 ? 0 : errno;
    }
    REQUIRE(error == EAGAIN);
    while (n)
        close(client[--n]);
    close(server);
}

// ---- calls that somebody ends after a while -----------------------------------------------------

static void write_byte(int fd) { REQUIRE(write(fd, "x", 1) == 1); }
static void write_line(int fd) { REQUIRE(write(fd, "x\n", 2) == 2); }

static void in_read_of_pipe(void) {
    struct later later;
    char c;
    int fd[2];
    REQUIRE(pipe(fd) == 0);
    begin_later(&later, write_byte, fd[1]);
    REQUIRE(read(fd[0], &c, 1) == 1);
    pthread_join(later.thread, NULL);
    close(fd[0]);
    close(fd[1]);
}

static void in_getc_of_terminal(void) {
    struct later later;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    REQUIRE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    FILE *terminal = fopen(ptsname(master), "r");
    REQUIRE(terminal);
    begin_later(&later, write_line, master);
    REQUIRE(getc(terminal) == 'x');
    pthread_join(later.thread, NULL);
    fclose(terminal);
    close(master);
}

static void drain_all(int fd) {
    static __thread char block[4096];
    struct timespec little = {0, 300000};
    for (size_t got = 0; got < 1 << 20;) {
        ssize_t n = read(fd, block, sizeof block);
        REQUIRE(n > 0);
        got += (size_t)n;
        nanosleep(&little, NULL);
    }
}

static void in_long_write(void) { // it is not cut short
    static char block[1 << 20];
    struct later later;
    int fd[2];
    REQUIRE(pipe(fd) == 0);
    begin_later(&later, drain_all, fd[0]);
    REQUIRE(write(fd[1], block, sizeof block) == sizeof block);
    pthread_join(later.thread, NULL);
    close(fd[0]);
    close(fd[1]);
}

static void send_slowly(int fd) {
    struct timespec little = {0, 300000};
    for (int i = 0; i < 200; i++) {
        REQUIRE(send(fd, "0123456789", 10, 0) == 10);
        nanosleep(&little, NULL);
    }
}

static void in_recv_of_all(void) {
    char text[2000];
    struct later later;
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    begin_later(&later, send_slowly, pair[1]);
    REQUIRE(recv(pair[0], text, sizeof text, MSG_WAITALL) == sizeof text);
    pthread_join(later.thread, NULL);
    close(pair[0]);
    close(pair[1]);
}

struct message {
    long type;
    char text[8];
};

static void send_message(int id) {
    struct message message = {1, "hello"};
    REQUIRE(msgsnd(id, &message, sizeof message.text, 0) == 0);
}

static void in_msgrcv(void) {
    struct later later;
    struct message message;
    int id = msgget(IPC_PRIVATE, 0600);
    REQUIRE(id >= 0);
    begin_later(&later, send_message, id);
    REQUIRE(msgrcv(id, &message, sizeof message.text, 1, 0) == sizeof message.text);
    pthread_join(later.thread, NULL);
    msgctl(id, IPC_RMID, NULL);
}

static void take_message(int id) {
    struct message message;
    REQUIRE(msgrcv(id, &message, sizeof message.text, 2, 0) == sizeof message.text);
}

static void in_msgsnd(void) {
    struct later later;
    struct message message = {2, "hello"};
    int id = msgget(IPC_PRIVATE, 0600);
    REQUIRE(id >= 0);
    while (msgsnd(id, &message, sizeof message.text, IPC_NOWAIT) == 0) {
    }
    begin_later(&later, take_message, id);
    REQUIRE(msgsnd(id, &message, sizeof message.text, 0) == 0);
    pthread_join(later.thread, NULL);
    msgctl(id, IPC_RMID, NULL);
}

static void give_semaphore(int id) {
    struct sembuf give = {0, 1, 0};
    REQUIRE(semop(id, &give, 1) == 0);
}

static void in_semop(void) {
    struct sembuf take = {0, -1, 0};
    struct later later;
    int id = semget(IPC_PRIVATE, 1, 0600);
    REQUIRE(id >= 0);
    begin_later(&later, give_semaphore, id);
    REQUIRE(semop(id, &take, 1) == 0);
    pthread_join(later.thread, NULL);
    semctl(id, 0, IPC_RMID);
}

static sem_t posted;
static void post(int unused) {
    (void)unused;
    sem_post(&posted);
}

static void in_sem_wait(void) {
    struct later later;
    begin_later(&later, post, 0);
    REQUIRE(sem_wait(&posted) == 0);
    pthread_join(later.thread, NULL);
}

static int word;
static void wake(int unused) {
    (void)unused;
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0L);
}

static void in_futex(void) {
    struct later later;
    __atomic_store_n(&word, 0, __ATOMIC_RELEASE);
    begin_later(&later, wake, 0);
    long done = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0L);
    REQUIRE(done == 0 || errno == EAGAIN);
    pthread_join(later.thread, NULL);
}

static void in_waitpid(void) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct timespec left = rest;
        nanosleep(&left, NULL);
        _exit(7);
    }
    REQUIRE(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
}

static void unlock(int fd) { REQUIRE(flock(fd, LOCK_UN) == 0); }

static void in_flock(void) {
    struct later later;
    char path[] = "/tmp/holds-XXXXXX";
    int fd = mkstemp(path), other = open(path, O_RDWR);
    REQUIRE(fd >= 0 && other >= 0 && flock(fd, LOCK_EX) == 0);
    begin_later(&later, unlock, fd);
    REQUIRE(flock(other, LOCK_EX) == 0);
    pthread_join(later.thread, NULL);
    unlink(path);
    close(fd);
    close(other);
}

// ---- all at once --------------------------------------------------------------------------------

static const struct kind kinds[] = {
    CALL(poll),
    CALL(ppoll),
    CALL(select),
    CALL(pselect),
    CALL(epoll_pwait2),
    CALL(epoll_wait),
    CALL(epoll_pwait),
    CALL(nanosleep),
    CALL(usleep),
    CALL(thrd_sleep),
    CALL(clock_nanosleep),
    CALL(sem_timedwait),
    CALL(clock_nanosleep_until),
    CALL(cond_timedwait),
    CALL(mutex_timedlock),
    CALL(semtimedop),
    CALL(sigtimedwait),
    CALL(recv),
    CALL(mq_timedreceive),
    CALL(send),
    CALL(accept_and_connect),
    CALL(read_of_pipe),
    CALL(getc_of_terminal),
    CALL(long_write),
    CALL(recv_of_all),
    CALL(msgrcv),
    CALL(msgsnd),
    CALL(semop),
    CALL(sem_wait),
    CALL_EARLY(futex),
    CALL(waitpid),
    CALL(flock),
};

int main(int argc, char **argv) {
    sigset_t blocked;
    REQUIRE(pipe(made_pipe) == 0);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    sem_init(&posted, 0, 0);
    return run_kinds(argc, argv, kinds, sizeof kinds / sizeof *kinds);
}
