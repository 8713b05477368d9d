// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What a program sees of its sockets and pipes. usage: outbox WAY [check]. Does what the way names,
// with a second process or thread at the other end, and prints results and errors: the same
// whether answers are taken (PMALLOC_COMMIT=output:TIME) or not. `check`: prints the root instead.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "outbox.h"

// ---- order --------------------------------------------------------------------------------------

static void all_calls(void) {
    struct iovec v[2] = {{"c", 1}, {"d", 1}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    char name[] = "/tmp/pmalloc-outbox-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    say("file", pwrite(file, "FILE", 4, 0));
    start_reader();
    write_text("a");
    say("send", send(ours, "b", 1, MSG_NOSIGNAL));
    say("writev", writev(ours, v, 2));
    off_t at = 0;
    say("sendfile", sendfile(ours, file, &at, 4));
    say("sendmsg", sendmsg(ours, &m, 0));
    say("sendto", sendto(ours, "e", 1, MSG_DONTWAIT, NULL, 0));
    say("by number", syscall(SYS_write, ours, "f", 1));
    say("send", send(ours, "g", 1, MSG_MORE));
    say("dprintf", dprintf(ours, "%s", "h"));
    say("empty", write(ours, "", 0));
    end_reader();
}

static void descriptor_after(void) {
    int other[2];
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {"x", 1};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (pipe(other) != 0)
        exit(9);
    *c = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(c), &other[1], sizeof(int));
    write_text("abc");
    say("sendmsg", sendmsg(ours, &m, 0));
    char text[8] = "", more[CMSG_SPACE(sizeof(int))];
    v = (struct iovec){text, 3};
    m.msg_control = more;
    say("recvmsg", recvmsg(theirs, &m, 0));
    say("rights", (long)m.msg_controllen);
    v.iov_len = 1;
    m.msg_controllen = sizeof more;
    say("recvmsg", recvmsg(theirs, &m, 0));
    say("rights", m.msg_controllen != 0);
}

static void to_another(void) {
    int first = ours, pair[2];
    if (pipe(pair) != 0)
        exit(9);
    start_reader();
    write_text("a");
    ours = pair[1];
    write_text("b");
    ours = first;
    write_text("c");
    char got[4] = "";
    say("read", read(pair[0], got, 1));
    puts(got);
    end_reader();
}

// ---- ends ---------------------------------------------------------------------------------------

static void by_close(void) {
    start_reader();
    write_text("closed");
    say("close", close(ours));
    waitpid(reader, NULL, 0);
}
static void by_number(void) {
    start_reader();
    write_text("closed by number");
    say("close", syscall(SYS_close, ours));
    waitpid(reader, NULL, 0);
}
static void by_dup2(void) {
    int null = open("/dev/null", O_WRONLY);
    start_reader();
    write_text("over");
    say("dup2", dup2(null, ours) == ours);
    write_text("to /dev/null");
    end_reader();
}
static void by_fclose(void) {
    FILE *stream = fdopen(ours, "w");
    start_reader();
    write_text("before");
    fputs(", stream", stream);
    say("fclose", fclose(stream));
    waitpid(reader, NULL, 0);
}
static void by_closefrom(void) {
    start_reader();
    write_text("many");
    say("close_range", close_range((unsigned)ours, (unsigned)ours, 0));
    waitpid(reader, NULL, 0);
}
static void by_shutdown(void) {
    start_reader();
    write_text("shut");
    say("shutdown", shutdown(ours, SHUT_WR));
    waitpid(reader, NULL, 0);
    say("write", send(ours, "x", 1, MSG_NOSIGNAL));
}
static void by_copy(void) {
    int copy = dup(ours);
    start_reader();
    write_text("one");
    close(ours);
    ours = copy;
    write_text("two");
    end_reader();
}
static void by_fork(void) {
    start_reader();
    write_text("parent");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        write_text("child");
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    end_reader();
}
// The answer of a child that ends so.
static void in_child(const char *text, void (*end)(void)) {
    start_reader();
    fflush(stdout);
    if (fork() == 0) {
        write_text(text);
        end();
    }
    wait(NULL);
    end_reader();
}
static void execute(void) {
    fflush(stdout);
    execl("/bin/true", "true", NULL);
}
static void leave(void) {
    fflush(stdout);
    _exit(0);
}
static void end(void) { exit(0); }
static void by_exec(void) { in_child("before exec", execute); }
static void by_exit(void) { in_child("before exit", end); }
static void by_leave(void) { in_child("before _exit", leave); }
// The child is the heap's process no more: this one ends with an answer that nobody waits for.
static void at_the_end(void) {
    start_reader();
    write_text("last");
}

// ---- errors -------------------------------------------------------------------------------------

static volatile sig_atomic_t broken;
static void on_pipe(int number) { broken += number == SIGPIPE; }

static void other_end_is_gone(void) {
    signal(SIGPIPE, on_pipe);
    close(theirs);
    for (unsigned i = 0; i < 2; i++) {
        write_text("x");
        say("signals", broken);
    }
    if (syscall(SYS_getsockopt, ours, SOL_SOCKET, SO_TYPE, &(int){0}, &(socklen_t){4}) == 0)
        say("send", send(ours, "x", 1, MSG_NOSIGNAL));
    say("signals", broken);
}

// Its end comes between the answer and the program's wait.
static void other_end_goes(void) {
    signal(SIGPIPE, on_pipe);
    write_text("x");
    syscall(SYS_close, theirs);
    poll(NULL, 0, 20);
    say("signals", broken);
    write_text("y");
    say("signals", broken);
}

static void bad_arguments(void) {
    void *volatile nowhere = (void *)16;
    volatile int less = -1;
    struct iovec v = {nowhere, 4}, good = {"a", 1};
    struct msghdr m = {.msg_iov = nowhere, .msg_iovlen = 1};
    say("write", write(ours, nowhere, 4));
    say("write", write(-1, "x", 1));
    say("write", write(theirs + 100, "x", 1));
    say("writev", writev(ours, &v, 1));
    say("writev", writev(ours, nowhere, 1));
    say("writev", writev(ours, &good, less));
    say("writev", writev(ours, &good, 0));
    say("send", send(ours, nowhere, 4, 0));
    say("sendmsg", sendmsg(ours, &m, 0));
    say("sendmsg", sendmsg(ours, nowhere, 0));
    say("flags", send(ours, "x", 1, MSG_OOB | MSG_ERRQUEUE) >= -1);
    errno = 77;
    say("good", write(ours, "x", 1));
    say("errno", errno);
}

// Blocks of the heap, and what else may be said with them in one call; a page of one cannot be read
// for a while.
static void from_blocks(void) {
    enum { PAGE = 4096 };
    char *page = aligned_alloc(PAGE, 2 * PAGE), *small = malloc(8), local[] = "local", got[64];
    struct iovec *v = malloc(2 * sizeof *v);
    if (!page || !small || !v)
        exit(9);
    memset(page, 'p', 2 * PAGE);
    strcpy(small, "small");
    v[0] = (struct iovec){small, 5};
    v[1] = (struct iovec){local, 5};
    say("block", write(ours, small, 5));
    say("blocks", writev(ours, v, 2));
    say("across", write(ours, page + PAGE - 2, 4));
    mprotect(page, PAGE, PROT_NONE);
    say("hidden", write(ours, page, 4));
    say("beside", write(ours, page + PAGE, 4));
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    say("shown", write(ours, page, 4));
    strcpy(small, "later");
    poll(NULL, 0, 20);
    memset(got, 0, sizeof got);
    say("read", read(theirs, got, sizeof got - 1));
    puts(got);
}

// Bytes until it would block, and all of them come. On a busy machine a socket is full for a moment
// because the kernel has not carried its bytes across yet.
static void full(void) {
    static char text[1000];
    long all = 0, n;
    fcntl(ours, F_SETFL, O_NONBLOCK);
    for (unsigned waits = 0; waits < 50; poll(NULL, 0, 1), waits++)
        for (; (n = write(ours, text, sizeof text)) > 0; waits = 0)
            all += n;
    say("full", n);
    struct pollfd p = {.fd = ours, .events = POLLOUT};
    say("poll", poll(&p, 1, 0));
    fcntl(theirs, F_SETFL, O_NONBLOCK);
    while ((n = read(theirs, text, sizeof text)) > 0)
        all -= n;
    say("left", all);
    say("poll", poll(&p, 1, 0));
    say("write", write(ours, text, 100));
}

static void waiting_bytes(void) {
    int bytes = 0;
    write_text("12345");
    say("ioctl", ioctl(ours, TIOCOUTQ, &bytes));
    say("waiting", bytes > 0);
    say("error", getsockopt(ours, SOL_SOCKET, SO_ERROR, &bytes, &(socklen_t){sizeof bytes}));
    say("is", bytes);
}

// Says that nothing more goes there, and lives on: no poll tells.
static void shut(int fd, int how) {
    signal(SIGPIPE, on_pipe);
    shutdown(fd, how);
    for (unsigned i = 0; i < 2; i++, poll(NULL, 0, 1))
        write_text("x");
    say("signals", broken);
}
static void shut_by_itself(void) { shut(ours, SHUT_WR); }
static void shut_by_the_other(void) { shut(theirs, SHUT_RD); }

// Whoever took more than there is room for would wait for ever.
static void count(int fd, long all) {
    static char text[8192];
    long n;
    alarm(20);
    poll(NULL, 0, 1);
    while ((n = recv(fd, text, sizeof text, MSG_DONTWAIT)) > 0)
        all -= n;
    say("left", all);
}

static void small_room(void) {
    static char text[4000];
    const size_t lengths[] = {100, 4000, 3000};
    long all = 0, n;
    setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int));
    fcntl(ours, F_SETFL, O_NONBLOCK);
    for (unsigned i = 0; i < 3; i++) {
        say("write", n = write(ours, text, lengths[i]));
        all += n > 0 ? n : 0;
        poll(NULL, 0, 1);
    }
    count(theirs, all);
}

// To two in turn, so that none joins the one before.
static void many_small(void) {
    int first[2] = {ours, theirs};
    long all[2] = {0, 0};
    unix_pair();
    fcntl(first[0], F_SETFL, O_NONBLOCK);
    fcntl(ours, F_SETFL, O_NONBLOCK);
    for (unsigned i = 0; i < 400; i++) {
        all[0] += write(first[0], "x", 1) == 1;
        all[1] += write(ours, "y", 1) == 1;
    }
    say("both", all[0] + all[1]);
    count(first[1], all[0]);
    count(theirs, all[1]);
}

static void by_many_copies(void) {
    static char text[4000];
    long all = 0, n = 1;
    fcntl(ours, F_SETFL, O_NONBLOCK);
    for (unsigned i = 0; i < 100 && n > 0; i++)
        all += (n = write(dup(ours), text, sizeof text)) > 0 ? n : 0;
    say("all", n);
    count(theirs, all);
}

static void packets(void) {
    char text[10];
    int pair[2];
    if (pipe2(pair, O_DIRECT | O_NONBLOCK) != 0)
        exit(9);
    for (unsigned i = 0; i < 2; i++)
        say("write", write(pair[1], "abc", 3));
    poll(NULL, 0, 1);
    for (unsigned i = 0; i < 2; i++)
        say("read", read(pair[0], text, sizeof text));
}
static void by_pclose(void) {
    fflush(stdout);
    FILE *stream = popen("cat", "w");
    say("write", write(fileno(stream), "piped\n", 6));
    say("pclose", pclose(stream));
}
static void by_freopen(void) {
    FILE *stream = fdopen(ours, "w");
    start_reader();
    write_text("reopened");
    say("freopen", freopen("/dev/null", "w", stream) != NULL);
    waitpid(reader, NULL, 0);
}
// What was written before it is sent at once, and does not wait for more.
static void by_option(void) {
    setsockopt(ours, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    write_text("option");
    setsockopt(ours, IPPROTO_TCP, TCP_CORK, &(int){1}, sizeof(int));
    count(theirs, 6);
}
static void to_be_read(void) {
    int bytes = 0;
    write_text("12345");
    say("ioctl", ioctl(theirs, FIONREAD, &bytes));
    say("bytes", bytes);
}

// ---- time ---------------------------------------------------------------------------------------

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

// Nothing but the time lets the answer go: this thread makes no call that waits.
static void never_waits(void) {
    int status = -1;
    char got[4];
    pid_t child = (pid_t)syscall(SYS_fork);
    if (child == 0)
        syscall(SYS_exit_group, syscall(SYS_read, theirs, got, sizeof got));
    write_text("busy");
    for (uint64_t end = now_ms() + 5000; now_ms() < end && waitpid(child, &status, WNOHANG) == 0;) {
    }
    say("bytes", WEXITSTATUS(status));
}

static void *echo(void *unused) {
    char byte;
    for (unsigned i = 0; i < 100 && read(theirs, &byte, 1) == 1; i++)
        if (write(theirs, &byte, 1) != 1)
            break;
    return unused;
}

// The answer of another thread of this process.
static void spins(void) {
    pthread_t thread;
    char byte = 0;
    pthread_create(&thread, NULL, echo, NULL);
    for (unsigned i = 0; i < 100; i++) {
        ++*value;
        if (write(ours, "e", 1) != 1)
            exit(8);
        while (recv(ours, &byte, 1, MSG_DONTWAIT) != 1)
            if (errno != EAGAIN)
                exit(8);
    }
    pthread_join(thread, NULL);
    puts("echoed");
}

static volatile sig_atomic_t beats;
static void on_alarm(int number) {
    int saved = errno;
    if (write(ours, "!", 1) == 1)
        beats += number == SIGALRM;
    errno = saved;
}

// A handler writes while the program allocates, waits, and writes itself.
static void handler(void) {
    const struct itimerspec often = {{0, 300000}, {0, 300000}};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
    timer_t timer;
    long sent = 0, got = 0, n;
    char text[4096];
    sigaction(SIGALRM, &action, NULL);
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0)
        exit(9);
    timer_settime(timer, 0, &often, NULL);
    for (unsigned i = 0; i < 2000; i++) {
        free(malloc(i));
        sent += write(ours, "x", 1);
        if (i % 16 == 0)
            poll(NULL, 0, 1);
        if (i % 64 == 0)
            got += read(theirs, text, sizeof text);
    }
    timer_delete(timer);
    for (sent += beats; got < sent; got += n)
        if ((n = read(theirs, text, sizeof text)) <= 0)
            exit(8);
    printf("all %d\n", sent == got);
}

// An event loop that answers many clients in each of its turns.
static void turns(void) {
    enum { CLIENTS = 40, TURNS = 10 };
    int client[CLIENTS][2];
    char byte;
    for (unsigned i = 0; i < CLIENTS; i++)
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, client[i]) != 0)
            exit(9);
    for (unsigned turn = 0; turn < TURNS; turn++) {
        for (unsigned i = 0; i < CLIENTS; i++) {
            ++*value;
            if (write(client[i][0], "a", 1) != 1)
                exit(8);
        }
        poll(NULL, 0, 1);
        for (unsigned i = 0; i < CLIENTS; i++)
            if (recv(client[i][1], &byte, 1, MSG_DONTWAIT) != 1)
                exit(8);
    }
    puts("answered");
}

static const struct way ways[] = {
    {"all_calls", all_calls},
    {"descriptor_after", descriptor_after},
    {"to_another", to_another},
    {"by_close", by_close},
    {"by_number", by_number},
    {"by_dup2", by_dup2},
    {"by_fclose", by_fclose},
    {"by_closefrom", by_closefrom},
    {"by_shutdown", by_shutdown},
    {"by_copy", by_copy},
    {"by_fork", by_fork},
    {"by_exec", by_exec},
    {"by_exit", by_exit},
    {"by_leave", by_leave},
    {"at_the_end", at_the_end},
    {"other_end_is_gone", other_end_is_gone},
    {"other_end_goes", other_end_goes},
    {"bad_arguments", bad_arguments},
    {"from_blocks", from_blocks},
    {"full", full},
    {"waiting_bytes", waiting_bytes},
    {"shut_by_itself", shut_by_itself},
    {"shut_by_the_other", shut_by_the_other},
    {"small_room", small_room},
    {"many_small", many_small},
    {"by_many_copies", by_many_copies},
    {"packets", packets},
    {"by_pclose", by_pclose},
    {"by_freopen", by_freopen},
    {"by_option", by_option},
    {"to_be_read", to_be_read},
    {"never_waits", never_waits},
    {"spins", spins},
    {"handler", handler},
    {"turns", turns},
};

int main(int argc, char **argv) { return run_way(argc, argv, ways, sizeof ways / sizeof *ways); }
