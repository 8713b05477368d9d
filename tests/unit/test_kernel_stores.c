// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Which descriptors say that the kernel or a device may store to this process's memory on its own:
// in this thread's table, in another thread's, and of rings whose descriptor is closed.
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "check.h"
#include "commit/kernel_stores.h"

static void test_what_servers_have_is_harmless(void) {
    int pair[2], ends[2];
    sigset_t none;
    sigemptyset(&none);
    CHECK(!pm_kernel_stores());
    const int fd[] = {
        epoll_create1(0),
        eventfd(0, 0),
        timerfd_create(CLOCK_MONOTONIC, 0),
        signalfd(-1, &none, 0),
        inotify_init(),
        (int)syscall(SYS_pidfd_open, getpid(), 0),
        socket(AF_INET, SOCK_STREAM, 0),
        open("/dev/null", O_RDWR),
        open("/dev/urandom", O_RDONLY),
        posix_openpt(O_RDWR | O_NOCTTY),
        open("/", O_RDONLY | O_DIRECTORY),
        memfd_create("test", 0),
    };
    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    for (size_t i = 0; i < sizeof fd / sizeof fd[0]; i++) {
        CHECK(fd[i] >= 0);
        CHECK(!pm_kernel_stores());
    }
    for (size_t i = 0; i < sizeof fd / sizeof fd[0]; i++)
        close(fd[i]);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(pair[i]);
    }
}

// The file system may know no direct I/O.
static int open_direct(void) { return open("/proc/self/exe", O_RDONLY | O_DIRECT); }

static void test_direct_files(void) {
    int fd = open_direct();
    if (fd < 0)
        return;
    CHECK(pm_kernel_stores());
    close(fd);
    CHECK(!pm_kernel_stores());
}

static void test_devices_that_nobody_knows(void) {
    static const char *const device[] = {"/dev/loop-control", "/dev/kvm", "/dev/mapper/control"};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) {
        int fd = open(device[i], O_RDONLY);
        if (fd < 0)
            continue;
        CHECK(pm_kernel_stores());
        close(fd);
        CHECK(!pm_kernel_stores());
    }
}

// A ring of this process. Negative: there is none here.
static int ring(void) {
    struct io_uring_params p = {0};
    return (int)syscall(SYS_io_uring_setup, 1, &p);
}

// Another system's ring has the same name in the maps.
static void test_rings(void) {
    int fd = ring();
    if (fd < 0)
        return;
    CHECK(pm_kernel_stores());
    void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    CHECK(map != MAP_FAILED);
    close(fd);
    CHECK(pm_kernel_stores()); // the kernel keeps it as long as it is mapped
    munmap(map, 4096);
    CHECK(!pm_kernel_stores());
    fd = ring();
    void *block = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct iovec one = {block, 8192};
    CHECK(syscall(SYS_io_uring_register, fd, IORING_REGISTER_BUFFERS, &one, 1) == 0);
    CHECK(pm_kernel_stores());
    close(fd);
    munmap(block, 8192);
    for (int i = 0; i < 10000 && pm_kernel_stores(); i++) // the kernel ends it a little later
        poll(NULL, 0, 1);
    CHECK(!pm_kernel_stores());
}

static sem_t go, ready;
static bool unshared;

static void *has_a_table(void *arg) {
    unshared = unshare(CLONE_FILES) == 0;
    sem_post(&ready);
    sem_wait(&go);
    int fd = unshared ? open_direct() : -1;
    *(int *)arg = fd;
    sem_post(&ready);
    sem_wait(&go);
    close(fd);
    fd = unshared ? ring() : -1;
    *(int *)arg = fd;
    sem_post(&ready);
    sem_wait(&go);
    return NULL; // the table ends with the thread
}

static void test_tables_of_threads(void) {
    pthread_t thread;
    int fd = -1;
    sem_init(&go, 0, 0);
    sem_init(&ready, 0, 0);
    CHECK(pthread_create(&thread, NULL, has_a_table, &fd) == 0);
    sem_wait(&ready);
    CHECK(!pm_kernel_stores());
    for (int i = 0; i < 2; i++) {
        sem_post(&go);
        sem_wait(&ready);
        CHECK(fd < 0 || pm_kernel_stores());
    }
    sem_post(&go);
    pthread_join(thread, NULL);
    for (int i = 0; i < 10000 && pm_kernel_stores(); i++)
        poll(NULL, 0, 1);
    CHECK(!pm_kernel_stores());
}

static void test_gifts_leave_no_trace(void) {
    CHECK(!pm_kernel_stores());
    atomic_store(&pm_kernel_got_pages, true);
    CHECK(pm_kernel_stores());
    atomic_store(&pm_kernel_got_pages, false);
}

int main(void) {
    RUN(what_servers_have_is_harmless);
    RUN(direct_files);
    RUN(devices_that_nobody_knows);
    RUN(rings);
    RUN(tables_of_threads);
    RUN(gifts_leave_no_trace);
    return CHECK_DONE();
}
