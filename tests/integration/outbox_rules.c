// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// More rules of what a program sees of its sockets and pipes, as outbox.c: calls that come after an
// answer, options of sockets, other programs, and threads that close what others write to.
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/uio.h>
#include <time.h>

#include <linux/errqueue.h> // needs time.h

#include "outbox.h"

static int null;

// What has come, without waiting.
static void say_come(int fd) {
    char text[256];
    poll(NULL, 0, 1);
    long n = recv(fd, text, sizeof text - 1, MSG_DONTWAIT);
    text[n > 0 ? n : 0] = 0;
    say("recv", n);
    puts(text);
}

// ---- calls that are not taken -------------------------------------------------------------------

static void by_other_calls(void) {
    int pair[2], copy[2];
    struct iovec v = {"v", 1};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}},
                           {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}}};
    if (pipe(pair) != 0 || pipe(copy) != 0)
        exit(9);
    write_text("a");
    say("pipe", write(pair[1], "PIPE", 4));
    say("tee", tee(pair[0], copy[1], 4, 0));
    say("splice", splice(pair[0], NULL, ours, NULL, 4, 0));
    write_text("b");
    say("splice", splice(copy[0], NULL, ours, NULL, 4, 0));
    write_text("c");
    say("sendmmsg", sendmmsg(ours, m, 2, 0));
    write_text("d");
    say("vmsplice", vmsplice(pair[1], &v, 1, 0));
    say_come(theirs);
}

static void by_oob(void) {
    write_text("a");
    say("oob", send(ours, "!", 1, MSG_OOB));
    write_text("b");
    say_come(theirs);
}

// The kernel numbers such calls, and says which are done: those that were taken do not count.
static void by_zerocopy(void) {
    char control[128];
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
    say("option", setsockopt(ours, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int)));
    write_text("a");
    say("zerocopy", send(ours, "b", 1, MSG_ZEROCOPY));
    write_text("c");
    say("zerocopy", send(ours, "d", 1, MSG_ZEROCOPY));
    say_come(theirs);
    struct pollfd p = {.fd = ours};
    say("poll", poll(&p, 1, 1000));
    say("recvmsg", recvmsg(ours, &m, MSG_ERRQUEUE));
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    struct sock_extended_err *e = c ? (void *)CMSG_DATA(c) : NULL;
    if (e)
        printf("origin %u, from %u to %u\n", e->ee_origin, e->ee_info, e->ee_data);
}

// ---- options and errors of a connection ---------------------------------------------------------

static void linger(int fd, int seconds) {
    struct linger l = {1, seconds};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
}

static void by_linger(void) {
    linger(ours, 5);
    write_text("lingers");
    say("close", close(ours));
    say_come(theirs);
    say_come(theirs);
}

// The connection is reset. What came before that is there.
static void by_reset(void) {
    linger(ours, 0);
    write_text("reset");
    say("close", close(ours));
    say_come(theirs);
    say_come(theirs);
}

static void by_late_linger(void) {
    write_text("late");
    linger(ours, 0);
    say("close", close(ours));
    say_come(theirs);
    say_come(theirs);
}

static int error_of(int fd) {
    int error = 0;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &(socklen_t){sizeof error});
    return error;
}

// Each error is told once, by SO_ERROR or by a call.
static void error_told(bool before) {
    signal(SIGPIPE, SIG_IGN);
    if (before)
        write_text("a");
    poll(NULL, 0, 1);
    say_come(theirs);
    linger(theirs, 0);
    close(theirs);
    struct pollfd p = {.fd = ours, .events = POLLOUT};
    say("poll", poll(&p, 1, 100));
    say("events", p.revents);
    if (!before)
        write_text("b");
    printf("error %s\n", strerrorname_np(error_of(ours)));
    write_text("c");
    printf("error %s\n", error_of(ours) ? "again" : "0");
}
static void error_by_option(void) { error_told(true); }
static void error_by_write(void) { error_told(false); }

// Room and what poll says of it come back when the other end has read.
static void room_comes_back(void) {
    static char text[3000];
    struct pollfd p = {.fd = ours, .events = POLLOUT};
    long all = 0, got = 0, n;
    setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &(int){8192}, sizeof(int));
    fcntl(ours, F_SETFL, O_NONBLOCK);
    for (unsigned round = 0; round < 20; round++) {
        unsigned tries = 100; // by TCP there may be room again a moment later
        do {
            while ((n = write(ours, text, sizeof text)) > 0)
                all += n;
            if (errno != EAGAIN || --tries == 0)
                exit(8);
        } while (poll(&p, 1, 0) != 0);
        while ((n = recv(theirs, text, sizeof text, MSG_DONTWAIT)) > 0)
            got += n;
        if (poll(&p, 1, 1000) != 1 || p.revents != POLLOUT)
            exit(8);
    }
    printf("lost %ld, some %d\n", all - got, all > 20);
}

// ---- other programs -----------------------------------------------------------------------------

static char *echo[] = {"sh", "-c", "printf child >&$FD", NULL};

static void by_spawn(void) {
    char number[16];
    pid_t child;
    fcntl(ours, F_SETFD, 0);
    snprintf(number, sizeof number, "%d", ours);
    setenv("FD", number, 1);
    unsetenv("LD_PRELOAD");
    fflush(stdout);
    write_text("parent ");
    posix_spawn(&child, "/bin/sh", NULL, NULL, echo, environ);
    waitpid(child, NULL, 0);
    write_text(" and ");
    say("system", system("printf system >&$FD"));
    write_text(" and ");
    fflush(stdout);
    if ((child = vfork()) == 0) {
        execve("/bin/sh", echo, environ);
        _exit(1);
    }
    waitpid(child, NULL, 0);
    write_text(".");
    start_reader();
    end_reader();
}

// ---- threads ------------------------------------------------------------------------------------

enum { ROUNDS = 20 };
static _Atomic long written;
static _Atomic bool enough;
static int shared, other[2];

static void *write_on(void *unused) {
    while (!enough) {
        long n = write(shared, "x", 1);
        written += n == 1;
        if (n < 0 && errno != EAGAIN)
            break;
    }
    return unused;
}

static long come(int fd) {
    static char text[65536];
    long n, all = 0;
    while ((n = recv(fd, text, sizeof text, MSG_DONTWAIT)) > 0)
        all += n;
    return all;
}

// What a call said was written has come, whatever another thread makes of the descriptor.
static void closed_by_another(void (*close_it)(void)) {
    long lost = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0 ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, other) != 0)
            exit(9);
        shared = pair[0];
        written = 0;
        enough = false;
        pthread_create(&thread, NULL, write_on, NULL);
        while (written < 1 + round % 7)
            sched_yield();
        close_it();
        enough = true;
        pthread_join(thread, NULL);
        close(pair[0]);
        close(other[0]);
        lost += written - come(pair[1]) - come(other[1]);
        close(pair[1]);
        close(other[1]);
    }
    printf("lost %ld\n", lost);
}
static void close_it(void) { close(shared); }
static void close_by_number(void) { syscall(SYS_close, shared); }
static void dup_over(void) { dup2(other[0], shared); }
static void dup_by_number(void) { syscall(SYS_dup3, other[0], shared, 0); }
static void close_range_of(void) { close_range((unsigned)shared, (unsigned)shared, 0); }
static void range_by_number(void) { syscall(SYS_close_range, shared, shared, 0); }
static void thread_closes(void) {
    closed_by_another(close_it);
    closed_by_another(close_by_number);
    closed_by_another(close_range_of);
    closed_by_another(range_by_number);
}
static void thread_replaces(void) {
    closed_by_another(dup_over);
    closed_by_another(dup_by_number);
}

static void by_range_by_number(void) {
    write_text("many");
    say("close_range", syscall(SYS_close_range, ours, ours, 0));
    say_come(theirs);
    say_come(theirs);
}
static void by_dup3(void) {
    write_text("over");
    say("dup3", dup3(null, ours, O_CLOEXEC) == ours);
    write_text("to /dev/null");
    say_come(theirs);
    say_come(theirs);
}

static const struct way ways[] = {
    {"by_other_calls", by_other_calls},
    {"by_oob", by_oob},
    {"by_zerocopy", by_zerocopy},
    {"by_linger", by_linger},
    {"by_reset", by_reset},
    {"by_late_linger", by_late_linger},
    {"error_by_option", error_by_option},
    {"error_by_write", error_by_write},
    {"room_comes_back", room_comes_back},
    {"by_spawn", by_spawn},
    {"thread_closes", thread_closes},
    {"thread_replaces", thread_replaces},
    {"by_dup3", by_dup3},
    {"by_range_by_number", by_range_by_number},
};

int main(int argc, char **argv) {
    null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    return run_way(argc, argv, ways, sizeof ways / sizeof *ways);
}
