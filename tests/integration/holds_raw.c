// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// System calls by their numbers, through libc's syscall() (preload/names/raw_calls.c), and the
// waits of libaio and liburing (preload/names/rings.c) where these are installed. SECONDS, [NAME].
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "holds_kinds.h"

static int made_pipe[2]; // nothing ever comes out of it
static int word;
static struct pollfd nothing(void) { return (struct pollfd){made_pipe[0], POLLIN, 0}; }

// ---- with a timeout -----------------------------------------------------------------------------

static void in_futex(void) {
    long done = syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &rest, NULL, 0L);
    REQUIRE(done == -1 && errno == ETIMEDOUT);
}

static void in_futex_until(void) {
    struct timespec time = at(CLOCK_REALTIME);
    int command = FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME;
    long done = syscall(SYS_futex, &word, command, 0, &time, NULL, FUTEX_BITSET_MATCH_ANY);
    REQUIRE(done == -1 && errno == ETIMEDOUT);
}

static void in_futex_waitv(void) {
    struct {
        uint64_t value, address;
        uint32_t flags, reserved;
    } one = {0, (uintptr_t)&word, 2 | 128, 0}; // 32 bits, private
    struct timespec time = at(CLOCK_MONOTONIC);
    long done = syscall(449, &one, 1, 0, &time, CLOCK_MONOTONIC);
    if (done == -1 && errno == ENOSYS)
        usleep(MS * 1000);
    else
        REQUIRE(done == -1 && errno == ETIMEDOUT);
}

static void in_poll(void) {
    struct pollfd p = nothing();
    REQUIRE(syscall(SYS_poll, &p, 1, MS) == 0);
}

static void in_ppoll(void) {
    struct pollfd p = nothing();
    struct timespec time = rest;
    uint64_t none = 0;
    REQUIRE(syscall(SYS_ppoll, &p, 1, &time, &none, sizeof none) == 0);
}

static void in_select(void) {
    fd_set set;
    struct timeval time = rest_val;
    FD_ZERO(&set);
    FD_SET(made_pipe[0], &set);
    REQUIRE(syscall(SYS_select, made_pipe[0] + 1, &set, NULL, NULL, &time) == 0);
}

static void in_pselect(void) {
    fd_set set;
    struct timespec time = rest;
    FD_ZERO(&set);
    FD_SET(made_pipe[0], &set);
    REQUIRE(syscall(SYS_pselect6, made_pipe[0] + 1, &set, NULL, NULL, &time, NULL) == 0);
}

static void in_epoll_wait(void) {
    struct epoll_event event;
    int fd = epoll_create1(0);
    REQUIRE(syscall(SYS_epoll_wait, fd, &event, 1, MS) == 0);
    close(fd);
}

static void in_nanosleep(void) { REQUIRE(syscall(SYS_nanosleep, &rest, NULL) == 0); }

static void in_clock_nanosleep(void) {
    struct timespec time = at(CLOCK_MONOTONIC);
    REQUIRE(syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == 0);
}

static void in_sigtimedwait(void) {
    uint64_t set = 1ull << (SIGUSR2 - 1);
    long done = syscall(SYS_rt_sigtimedwait, &set, NULL, &rest, sizeof set);
    REQUIRE(done == -1 && errno == EAGAIN);
}

static void in_semtimedop(void) {
    struct sembuf take = {0, -1, 0};
    int id = semget(IPC_PRIVATE, 1, 0600);
    REQUIRE(id >= 0 && syscall(SYS_semtimedop, id, &take, 1, &rest) == -1 && errno == EAGAIN);
    semctl(id, 0, IPC_RMID);
}

static void in_recvfrom(void) {
    char c;
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    REQUIRE(setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &rest_val, sizeof rest_val) == 0);
    REQUIRE(syscall(SYS_recvfrom, pair[0], &c, 1, 0, NULL, NULL) == -1 && errno == EAGAIN);
    REQUIRE(syscall(SYS_read, pair[0], &c, 1) == -1 && errno == EAGAIN);
    close(pair[0]);
    close(pair[1]);
}

static void in_waitid(void) {
    siginfo_t info;
    pid_t child = fork();
    if (child == 0) {
        usleep(MS * 1000);
        _exit(0);
    }
    REQUIRE(syscall(SYS_waitid, P_PID, child, &info, WEXITED, NULL) == 0);
}

static void write_byte(int fd) { REQUIRE(write(fd, "x", 1) == 1); }
static void in_read(void) {
    struct later later;
    char c;
    int fd[2];
    REQUIRE(pipe(fd) == 0);
    begin_later(&later, write_byte, fd[1]);
    REQUIRE(syscall(SYS_read, fd[0], &c, 1) == 1 && c == 'x');
    pthread_join(later.thread, NULL);
    close(fd[0]);
    close(fd[1]);
}

// A number that libc has no function for, with six arguments.
static void in_others(void) {
    REQUIRE(syscall(SYS_gettid) > 0);
    char *page = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    REQUIRE(page != MAP_FAILED && page[4095] == 0 && munmap(page, 4096) == 0);
    REQUIRE(syscall(SYS_close, -1) == -1 && errno == EBADF);
    REQUIRE(syscall(100000) == -1 && errno == ENOSYS);
}

// ---- asynchronous requests ----------------------------------------------------------------------

static void in_io_getevents(void) {
    aio_context_t context = 0;
    struct io_event event;
    struct timespec time = rest;
    if (syscall(SYS_io_setup, 4, &context) != 0 && errno == ENOSYS) {
        usleep(MS * 1000);
        return;
    }
    REQUIRE(context && syscall(SYS_io_getevents, context, 1, 1, &event, &time) == 0);
    double begin = now();
    struct timespec again = rest;
    REQUIRE(syscall(SYS_io_pgetevents, context, 1, 1, &event, &again, NULL) == 0);
    REQUIRE(now() - begin >= MS / 1000.0);
    syscall(SYS_io_destroy, context);
}

static void in_io_uring_enter(void) {
    struct io_uring_params params = {0};
    struct io_uring_getevents_arg wait = {.ts = (uintptr_t)&rest};
    int fd = (int)syscall(SYS_io_uring_setup, 4, &params);
    if (fd < 0 || !(params.features & IORING_FEAT_EXT_ARG)) {
        usleep(MS * 1000); // forbidden, or too old
    } else {
        unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
        REQUIRE(syscall(SYS_io_uring_enter, fd, 0, 1, flags, &wait, sizeof wait) == -1);
        REQUIRE(errno == ETIME);
    }
    close(fd);
}

// A module's libraries may be out of reach of RTLD_NEXT.
static int (*module_waits)(const char *library, const struct timespec *time);
static void in_libaio(void) {
    if (!module_waits || module_waits("libaio", &rest) < 0)
        usleep(MS * 1000);
}
static void in_liburing(void) {
    if (!module_waits || module_waits("liburing", &rest) < 0)
        usleep(MS * 1000);
}

static const struct kind kinds[] = {
    CALL(futex),          CALL(futex_until),     CALL(futex_waitv),
    CALL(poll),           CALL(ppoll),           CALL(select),
    CALL(pselect),        CALL(epoll_wait),      CALL(nanosleep),
    CALL(sigtimedwait),   CALL(clock_nanosleep), CALL(semtimedop),
    CALL(recvfrom),       CALL(waitid),          CALL(read),
    CALL_EARLY(others),   CALL(io_getevents),    CALL(libaio),
    CALL(io_uring_enter), CALL(liburing),
};

int main(int argc, char **argv) {
    sigset_t blocked;
    REQUIRE(pipe(made_pipe) == 0);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    void *module = argc > 3 ? dlopen(argv[3], RTLD_LAZY | RTLD_LOCAL) : NULL;
    if (module)
        *(void **)&module_waits = dlsym(module, "module_waits");
    REQUIRE(argc <= 3 || module_waits);
    return run_kinds(argc, argv, kinds, sizeof kinds / sizeof *kinds);
}
