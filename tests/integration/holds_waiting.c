// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Waits that libc makes inside its functions, and calls that the kernel repeats after a signal:
// locks, joins, children, files, the resolver. SECONDS, [NAME].
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/nameser.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <resolv.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#include "holds_kinds.h"

// ---- locks --------------------------------------------------------------------------------------

static pthread_mutex_t mutex[4] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_rwlock_t rwlock[2] = {PTHREAD_RWLOCK_INITIALIZER, PTHREAD_RWLOCK_INITIALIZER};
static pthread_barrier_t barrier;
static int signalled;

// A thread that has lock number `n` for a while.
struct owner {
    pthread_t thread;
    int n;
    void (*take)(int n), (*give)(int n);
    _Atomic bool has_it;
};

static void *own(void *arg) {
    struct owner *owner = arg;
    owner->take(owner->n);
    owner->has_it = true;
    struct timespec left = {0, (MS + 1) * 1000000L}; // the other begins later
    nanosleep(&left, NULL);
    usleep(2000);
    owner->give(owner->n);
    return NULL;
}

static void begin_owner(struct owner *owner) {
    REQUIRE(pthread_create(&owner->thread, NULL, own, owner) == 0);
    while (!owner->has_it)
        sched_yield();
}

static void take_mutex(int n) { REQUIRE(pthread_mutex_lock(&mutex[n]) == 0); }
static void give_mutex(int n) { REQUIRE(pthread_mutex_unlock(&mutex[n]) == 0); }
static void take_rwlock(int n) { REQUIRE(pthread_rwlock_wrlock(&rwlock[n]) == 0); }
static void give_rwlock(int n) { REQUIRE(pthread_rwlock_unlock(&rwlock[n]) == 0); }

static void wait_for_mutex(int n) {
    struct owner owner = {.n = n, .take = take_mutex, .give = give_mutex};
    begin_owner(&owner);
    take_mutex(n);
    give_mutex(n);
    pthread_join(owner.thread, NULL);
}
static void in_mutex_lock(void) { wait_for_mutex(0); }
static void in_mutex_lock_pi(void) { wait_for_mutex(2); }
static void in_mutex_lock_robust(void) { wait_for_mutex(3); }

static void in_mtx_timedlock(void) {
    static mtx_t lock;
    static bool made;
    if (!made)
        REQUIRE(mtx_init(&lock, mtx_timed) == thrd_success && mtx_lock(&lock) == thrd_success);
    made = true;
    struct timespec time = at(CLOCK_REALTIME);
    REQUIRE(mtx_timedlock(&lock, &time) == thrd_timedout);
}

static void in_rwlock(void) {
    struct owner owner = {.n = 0, .take = take_rwlock, .give = give_rwlock};
    begin_owner(&owner);
    REQUIRE(pthread_rwlock_rdlock(&rwlock[0]) == 0);
    give_rwlock(0);
    pthread_join(owner.thread, NULL);
}

static void in_rwlock_timed(void) {
    struct timespec time = at(CLOCK_REALTIME);
    pthread_rwlock_tryrdlock(&rwlock[1]);
    REQUIRE(pthread_rwlock_timedwrlock(&rwlock[1], &time) == ETIMEDOUT);
    REQUIRE(pthread_rwlock_unlock(&rwlock[1]) == 0);
}

static void signal_cond(int unused) {
    (void)unused;
    pthread_mutex_lock(&mutex[1]);
    signalled++;
    pthread_cond_signal(&cond);
    pthread_mutex_unlock(&mutex[1]);
}

static void in_cond_wait(void) {
    struct later later;
    pthread_mutex_lock(&mutex[1]);
    int before = signalled;
    begin_later(&later, signal_cond, 0);
    while (signalled == before)
        REQUIRE(pthread_cond_wait(&cond, &mutex[1]) == 0);
    pthread_mutex_unlock(&mutex[1]);
    pthread_join(later.thread, NULL);
}

static void in_cond_clockwait(void) {
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct timespec time = at(CLOCK_MONOTONIC);
    int error = 0;
    pthread_mutex_lock(&lock);
    while (!error)
        error = pthread_cond_clockwait(&never, &lock, CLOCK_MONOTONIC, &time);
    REQUIRE(error == ETIMEDOUT);
    pthread_mutex_unlock(&lock);
}

static void reach_barrier(int unused) {
    (void)unused;
    pthread_barrier_wait(&barrier);
}
static void in_barrier(void) {
    struct later later;
    begin_later(&later, reach_barrier, 0);
    int result = pthread_barrier_wait(&barrier);
    REQUIRE(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
    pthread_join(later.thread, NULL);
}

static void do_nothing(int unused) { (void)unused; }
static void in_join(void) {
    struct later later;
    begin_later(&later, do_nothing, 0);
    REQUIRE(pthread_join(later.thread, NULL) == 0);
}
static void in_clockjoin(void) {
    struct later later;
    struct timespec time = at(CLOCK_REALTIME);
    time.tv_sec += 10; // not reached
    begin_later(&later, do_nothing, 0);
    REQUIRE(pthread_clockjoin_np(later.thread, NULL, CLOCK_REALTIME, &time) == 0);
}

static void once_done(void) { usleep(MS * 1000 + 2000); }
static pthread_once_t *the_once;
static void *run_once(void *unused) {
    (void)unused;
    pthread_once(the_once, once_done);
    return NULL;
}
static void in_once(void) {
    pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_t thread;
    the_once = &once;
    REQUIRE(pthread_create(&thread, NULL, run_once, NULL) == 0);
    pthread_once(&once, once_done);
    pthread_join(thread, NULL);
}

// ---- files and descriptors ----------------------------------------------------------------------

static struct flock whole(short type) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET};
}
static void unlock_file(int fd) {
    struct flock none = whole(F_UNLCK);
    REQUIRE(fcntl(fd, F_OFD_SETLK, &none) == 0);
}
static void in_fcntl_lock(void) {
    struct later later;
    struct flock lock = whole(F_WRLCK);
    char path[] = "/tmp/holds-XXXXXX";
    int fd = mkstemp(path), other = open(path, O_RDWR);
    REQUIRE(fd >= 0 && other >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0);
    begin_later(&later, unlock_file, fd);
    REQUIRE(fcntl(other, F_OFD_SETLKW, &lock) == 0);
    pthread_join(later.thread, NULL);
    unlink(path);
    close(fd);
    close(other);
}

// The other end is opened by a child, which nobody holds.
static void open_fifo(int flags) {
    char path[] = "/tmp/holds-XXXXXX";
    int status, other = flags == O_RDONLY ? O_WRONLY : O_RDONLY;
    close(mkstemp(path));
    unlink(path);
    REQUIRE(mkfifo(path, 0600) == 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        usleep(MS * 1000);
        int fd = open(path, other); // stays open until the parent has it too
        usleep(100000);
        _exit(fd < 0);
    }
    int fd = open(path, flags);
    REQUIRE(fd >= 0);
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    close(fd);
    unlink(path);
}
static void in_open_fifo_to_read(void) { open_fifo(O_RDONLY); }
static void in_open_fifo_to_write(void) { open_fifo(O_WRONLY); }

static void give_event(int fd) { REQUIRE(eventfd_write(fd, 1) == 0); }
static void in_eventfd_read(void) {
    struct later later;
    eventfd_t value;
    int fd = eventfd(0, 0);
    begin_later(&later, give_event, fd);
    REQUIRE(eventfd_read(fd, &value) == 0);
    pthread_join(later.thread, NULL);
    close(fd);
}

static void in_read_of_timerfd(void) {
    uint64_t times;
    const struct itimerspec when = {{0, 0}, rest};
    int fd = timerfd_create(CLOCK_MONOTONIC, 0);
    REQUIRE(timerfd_settime(fd, 0, &when, NULL) == 0);
    REQUIRE(read(fd, &times, sizeof times) == sizeof times);
    close(fd);
}

static void in_read_of_signalfd(void) {
    struct signalfd_siginfo info;
    const struct itimerspec when = {{0, 0}, rest};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3};
    sigset_t set;
    timer_t timer;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 3);
    int fd = signalfd(-1, &set, 0);
    REQUIRE(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    REQUIRE(timer_settime(timer, 0, &when, NULL) == 0);
    REQUIRE(read(fd, &info, sizeof info) == sizeof info);
    timer_delete(timer);
    close(fd);
}

static char watched[] = "/tmp/holds-XXXXXX";
static void touch(int unused) {
    (void)unused;
    close(open(watched, O_WRONLY));
}
static void in_read_of_inotify(void) {
    struct later later;
    char text[4096];
    int fd = inotify_init();
    REQUIRE(fd >= 0 && inotify_add_watch(fd, watched, IN_CLOSE_WRITE) >= 0);
    begin_later(&later, touch, 0);
    REQUIRE(read(fd, text, sizeof text) > 0);
    pthread_join(later.thread, NULL);
    close(fd);
}

#define RANDOM_BYTES ((size_t)32 << 20) // less is random enough, more takes long
static void in_getrandom(void) {
    char *block = malloc(RANDOM_BYTES);
    REQUIRE(block && getrandom(block, RANDOM_BYTES, 0) == (ssize_t)RANDOM_BYTES);
    free(block);
}

static void write_byte(int fd) { REQUIRE(write(fd, "x", 1) == 1); }
static void in_splice(void) {
    struct later later;
    int from[2], to[2];
    REQUIRE(pipe(from) == 0 && pipe(to) == 0);
    begin_later(&later, write_byte, from[1]);
    REQUIRE(splice(from[0], NULL, to[1], NULL, 100, 0) == 1);
    pthread_join(later.thread, NULL);
    for (int i = 0; i < 2; i++)
        close(from[i]), close(to[i]);
}

static void in_aio_suspend(void) {
    struct later later;
    char byte;
    int fd[2];
    REQUIRE(pipe(fd) == 0);
    struct aiocb request = {.aio_fildes = fd[0], .aio_buf = &byte, .aio_nbytes = 1};
    const struct aiocb *list[] = {&request};
    const struct timespec longer = {30, 0};
    REQUIRE(aio_read(&request) == 0);
    begin_later(&later, write_byte, fd[1]);
    REQUIRE(aio_suspend(list, 1, &longer) == 0);
    REQUIRE(aio_error(&request) == 0 && aio_return(&request) == 1);
    pthread_join(later.thread, NULL);
    close(fd[0]);
    close(fd[1]);
}

static void in_lio_listio(void) {
    struct later later;
    char byte;
    int fd[2];
    REQUIRE(pipe(fd) == 0);
    struct aiocb request = {
        .aio_fildes = fd[0], .aio_buf = &byte, .aio_nbytes = 1, .aio_lio_opcode = LIO_READ};
    struct aiocb *list[] = {&request};
    begin_later(&later, write_byte, fd[1]);
    REQUIRE(lio_listio(LIO_WAIT, list, 1, NULL) == 0 && aio_return(&request) == 1);
    pthread_join(later.thread, NULL);
    close(fd[0]);
    close(fd[1]);
}

// ---- sockets ------------------------------------------------------------------------------------

static void in_recvmmsg(void) {
    char text[8];
    int pair[2];
    struct iovec part = {text, sizeof text};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    REQUIRE(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    REQUIRE(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &rest_val, sizeof rest_val) == 0);
    REQUIRE(recvmmsg(pair[0], &message, 1, 0, NULL) == -1 && errno == EAGAIN);
    close(pair[0]);
    close(pair[1]);
}

static void accept_one(int server) { close(accept(server, NULL, NULL)); }
static void in_connect(void) { // without a timeout, until there is room in the server's queue
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    socklen_t len = sizeof name;
    struct later later;
    int server = socket(AF_UNIX, SOCK_STREAM, 0), first = socket(AF_UNIX, SOCK_STREAM, 0);
    int second = socket(AF_UNIX, SOCK_STREAM, 0);
    REQUIRE(bind(server, (struct sockaddr *)&name, sizeof(sa_family_t)) == 0);
    REQUIRE(listen(server, 0) == 0);
    REQUIRE(getsockname(server, (struct sockaddr *)&name, &len) == 0);
    REQUIRE(connect(first, (struct sockaddr *)&name, len) == 0);
    begin_later(&later, accept_one, server);
    REQUIRE(connect(second, (struct sockaddr *)&name, len) == 0);
    pthread_join(later.thread, NULL);
    close(first);
    close(second);
    close(server);
}

// A name server that says after a while that there is no such name.
static void answer_name(int fd) {
    unsigned char text[512];
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    ssize_t got = recvfrom(fd, text, sizeof text, 0, (struct sockaddr *)&from, &len);
    REQUIRE(got > 12);
    usleep(MS * 1000);
    text[2] |= 0x80; // a response
    text[3] = 0x83;  // NXDOMAIN
    REQUIRE(sendto(fd, text, (size_t)got, 0, (struct sockaddr *)&from, len) == got);
}

static void in_resolver(void) {
    static struct __res_state state;
    static int fd;
    struct later later;
    unsigned char answer[512];
    if (!fd) {
        struct sockaddr_in name = {.sin_family = AF_INET};
        socklen_t len = sizeof name;
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fd = socket(AF_INET, SOCK_DGRAM, 0);
        REQUIRE(bind(fd, (struct sockaddr *)&name, len) == 0 && res_ninit(&state) == 0);
        REQUIRE(getsockname(fd, (struct sockaddr *)&name, &len) == 0);
        state.nscount = 1;
        state.nsaddr_list[0] = name;
        state.retry = 1;
    }
    begin_later(&later, answer_name, fd);
    int got = res_nquery(&state, "nobody.example", ns_c_in, ns_t_a, answer, sizeof answer);
    REQUIRE(got == -1 && state.res_h_errno == HOST_NOT_FOUND);
    pthread_join(later.thread, NULL);
}

// ---- children and signals -----------------------------------------------------------------------

static void in_waitid(void) {
    siginfo_t info;
    pid_t child = fork();
    if (child == 0) {
        usleep(MS * 1000);
        _exit(7);
    }
    REQUIRE(waitid(P_PID, (id_t)child, &info, WEXITED) == 0 && info.si_status == 7);
}

static void in_system(void) { REQUIRE(system("sleep 0.08") == 0); }

static void in_pclose(void) {
    FILE *child = popen("sleep 0.08; echo x", "r");
    REQUIRE(child && getc(child) == 'x' && pclose(child) == 0);
}

static pthread_t waits_for_signal;
static void send_signal(int number) { REQUIRE(pthread_kill(waits_for_signal, number) == 0); }
static void in_sigwait(void) {
    struct later later;
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 4);
    waits_for_signal = pthread_self();
    begin_later(&later, send_signal, SIGRTMIN + 4);
    REQUIRE(sigwait(&set, &number) == 0 && number == SIGRTMIN + 4);
    pthread_join(later.thread, NULL);
    begin_later(&later, send_signal, SIGRTMIN + 4);
    siginfo_t info;
    REQUIRE(sigwaitinfo(&set, &info) == SIGRTMIN + 4);
    pthread_join(later.thread, NULL);
}

static void in_sleep(void) { REQUIRE(sleep(1) == 0); }

static const struct kind kinds[] = {
    CALL(mutex_lock),
    CALL(mutex_lock_robust),
    CALL(mtx_timedlock),
    CALL(rwlock),
    CALL(rwlock_timed),
    CALL(cond_wait),
    CALL(cond_clockwait),
    CALL(barrier),
    CALL(join),
    CALL(clockjoin),
    CALL(once),
    CALL(fcntl_lock),
    CALL(open_fifo_to_read),
    CALL(open_fifo_to_write),
    CALL(eventfd_read),
    CALL(read_of_timerfd),
    CALL(read_of_signalfd),
    CALL(read_of_inotify),
    CALL_EARLY(getrandom),
    CALL(splice),
    CALL(aio_suspend),
    CALL(lio_listio),
    CALL(recvmmsg),
    CALL(connect),
    CALL(resolver),
    CALL(waitid),
    CALL(system),
    CALL(pclose),
    CALL(sigwait),
    CALL(sleep),
    CALL(mutex_lock_pi),
};

static void make_mutex(pthread_mutex_t *at, int protocol, int robust) {
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    REQUIRE(pthread_mutexattr_setprotocol(&attr, protocol) == 0);
    REQUIRE(pthread_mutexattr_setrobust(&attr, robust) == 0);
    REQUIRE(pthread_mutex_init(at, &attr) == 0);
}

int main(int argc, char **argv) {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGRTMIN + 3);
    sigaddset(&blocked, SIGRTMIN + 4);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    make_mutex(&mutex[2], PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_STALLED);
    make_mutex(&mutex[3], PTHREAD_PRIO_NONE, PTHREAD_MUTEX_ROBUST);
    REQUIRE(pthread_barrier_init(&barrier, NULL, 2) == 0);
    close(mkstemp(watched));
    int status = run_kinds(argc, argv, kinds, sizeof kinds / sizeof *kinds);
    unlink(watched);
    return status;
}
