// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Children that live on with heaps of their own: copies of the heap, and daemons.
#include "forks.h"

#include <pthread.h>

// The test looks afterwards at what is left in which heap. The parent's blocks have tag 2, those of
// its children 3, those of its grandchildren 4.
void copies(size_t megabytes) {
    build(megabytes, 1);
    for (int i = 0; i < 2; i++) {
        pid_t pid = forked();
        if (!pid) {
            check_all(1);
            fill_all(3);
            churn(3);
            pid_t grandchild = forked();
            if (!grandchild) {
                check_all(3);
                fill_all(4);
                churn(4);
                check_all(4);
                printf("4 %d\n", (int)getpid());
                fflush(stdout);
                kill(getpid(), SIGKILL);
            }
            CHECK(ended(grandchild) == 128 + SIGKILL);
            check_all(3);
            printf("3 %d\n", (int)getpid());
            fflush(stdout);
            if (i)
                kill(getpid(), SIGKILL);
            exit(0);
        }
        int status = ended(pid);
        CHECK(status == (i ? 128 + SIGKILL : 0));
        check_all(1);
    }
    fill_all(2);
    churn(2);
    check_all(2);
    kill(getpid(), SIGKILL);
}

static void last_words(void) { printf("%d ends\n", (int)getpid()); }

// The work of a daemon. At its end it writes its process id to `file`, where the test looks for it.
static void serve(const char *file) {
    check_all(1);
    fill_all(5);
    churn(5);
    for (int i = 0; i < 3; i++) { // two workers end, one is killed
        pid_t worker = forked();
        if (!worker) {
            check_all(5);
            fill_all(6);
            churn(6);
            check_all(6);
            if (i == 2)
                for (;;)
                    pause();
            exit(0);
        }
        if (i < 2)
            CHECK(ended(worker) == 0);
        else
            kill(worker, SIGKILL);
        check_all(5);
    }
    churn(5);
    check_all(5);
    char name[600];
    snprintf(name, sizeof name, "%s.new", file);
    FILE *out = fopen(name, "w");
    CHECK(out && fprintf(out, "%d\n", (int)getpid()) > 0 && fclose(out) == 0);
    CHECK(rename(name, file) == 0);
}

static volatile int told_to_end;
static void end(int number) {
    (void)number;
    told_to_end = 1;
}

// The test sends SIGTERM when the daemon has served. The signal must be expected by then, and it
// must not come between a look at told_to_end and the sleep.
static sigset_t others;

static void expect_the_end(void) {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    CHECK(sigprocmask(SIG_BLOCK, &term, &others) == 0);
    signal(SIGTERM, end);
}

static void await_the_end(void) {
    while (!told_to_end)
        sigsuspend(&others);
}

static int closes_all;

static void become_daemon(const char *file, int forks, int parent_waits) {
    atexit(last_words);
    int fd[2];
    CHECK(pipe(fd) == 0);
    for (int i = 0; i < forks; i++) {
        pid_t pid = forked();
        if (pid) {
            free(malloc(100000)); // these requests concern the parent's own memory alone
            if (i == 0) {
                fill_all(8);
                churn(8);
                check_all(8);
            }
            if (parent_waits)
                await(fd[0]);
            exit(0);
        }
        setsid();
        for (int d = 3; closes_all && d < 1024; d++)
            if (d != fd[0] && d != fd[1])
                close(d);
        check_all(1);
    }
    expect_the_end();
    serve(file);
    tell(fd[1]);
    freopen("/dev/null", "w", stdout);
    await_the_end();
    exit(0);
}

void daemon_single(size_t megabytes) {
    build(megabytes, 1);
    become_daemon(argument, 1, 0);
}
// The parent ends only when the daemon says that it is ready.
void daemon_awaited(size_t megabytes) {
    build(megabytes, 1);
    become_daemon(argument, 1, 1);
}
void daemon_double(size_t megabytes) {
    build(megabytes, 1);
    become_daemon(argument, 2, 0);
}
void daemon_closing(size_t megabytes) {
    closes_all = 1;
    daemon_double(megabytes);
}
void daemon_libc(size_t megabytes) {
    build(megabytes, 1);
    CHECK(daemon(1, 1) == 0);
    expect_the_end();
    serve(argument);
    await_the_end();
}
void daemon_threads(size_t megabytes) {
    pthread_t thread;
    build(megabytes, 1);
    CHECK(pthread_create(&thread, NULL, allocate, (void *)1) == 0);
    usleep(2000);
    become_daemon(argument, 1, 0);
}

// Threads that make one large block after the other. The heap goes to the child amid that.
static void *grow(void *arg) {
    enum { SLOTS = 500 };
    static __thread void *slot[SLOTS];
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (unsigned i = 0;; i++) {
        free(slot[i % SLOTS]);
        slot[i % SLOTS] = malloc(20000 + (unsigned)rand_r(&seed) % 60000);
        CHECK(slot[i % SLOTS]);
    }
    return NULL;
}
void daemon_growing(size_t megabytes) {
    pthread_t thread;
    build(megabytes, 1);
    for (uintptr_t i = 1; i <= 3; i++)
        CHECK(pthread_create(&thread, NULL, grow, (void *)i) == 0);
    usleep(2000);
    become_daemon(argument, 1, 0);
}
