// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Parent and child go on with the same blocks. Neither sees what the other does to them.
#include "forks.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/wait.h>

// Both go on at once.
void isolation(size_t megabytes) {
    build(megabytes, 1);
    pid_t pid = forked();
    long mine = pid ? 2 : 3;
    for (int round = 0; round < 3; round++) {
        check_all(round ? mine : 1);
        fill_all(mine);
        churn(mine);
        check_all(mine);
    }
    if (!pid)
        _exit(0);
    CHECK(ended(pid) == 0);
    check_all(2);
}

// The same, but the parent is killed while the child still runs.
void orphan(size_t megabytes) {
    int fd[2];
    CHECK(pipe(fd) == 0);
    build(megabytes, 1);
    pid_t pid = forked();
    if (pid) {
        fill_all(2);
        churn(2);
        check_all(2);
        tell(fd[1]);
        kill(getpid(), SIGKILL);
    }
    await(fd[0]);
    check_all(1);
    puts("orphan"); // the test opens the heap now
    fflush(stdout);
    int byte = getchar();
    check_all(1);
    fill_all(3);
    churn(3);
    check_all(3);
    printf("whole %d\n", byte != EOF);
}

void stopped(size_t megabytes) {
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        raise(SIGSTOP);
        check_all(1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    fill_all(2);
    churn(2);
    kill(pid, SIGCONT);
    CHECK(ended(pid) == 0);
    check_all(2);
}

void traced(size_t megabytes) {
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
        raise(SIGSTOP);
        check_all(1);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
    fill_all(2);
    churn(2);
    CHECK(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
    CHECK(ended(pid) == 0);
    check_all(2);
}

// The child closes every descriptor, the heap's too, as daemons do.
void closing(size_t megabytes) {
    int fd[2];
    CHECK(pipe(fd) == 0);
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        for (int i = 3; i < 1024; i++)
            if (i != fd[0])
                close(i);
        await(fd[0]);
        check_all(1);
        churn(1);
        check_all(1);
        pid_t grandchild = forked();
        fill_all(grandchild ? 4 : 5);
        check_all(grandchild ? 4 : 5);
        _exit(grandchild ? ended(grandchild) : 0);
    }
    fill_all(2);
    churn(2);
    tell(fd[1]);
    CHECK(ended(pid) == 0);
    check_all(2);
}

// A chain of forks without a pause.
void deep(size_t megabytes) {
    build(megabytes, 1);
    for (long depth = 1; depth < 12; depth++) {
        pid_t pid = forked();
        if (pid) {
            fill_all(100 + depth);
            int status = ended(pid);
            check_all(100 + depth);
            if (depth > 1)
                _exit(status);
            CHECK(status == 0);
            fill_all(2);
            return;
        }
        check_all(depth);
        fill_all(depth + 1);
    }
    _exit(0);
}

// The child forks before its own memory can have been copied.
void hasty(size_t megabytes) {
    int fd[2];
    CHECK(pipe(fd) == 0);
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        pid_t grandchild = fork();
        await(fd[0]);
        check_all(1);
        fill_all(grandchild ? 3 : 4);
        _exit(grandchild ? ended(grandchild) : 0);
    }
    fill_all(2);
    churn(2);
    tell(fd[1]);
    tell(fd[1]);
    CHECK(ended(pid) == 0);
    check_all(2);
}

void broad(size_t megabytes) {
    pid_t child[16];
    build(megabytes, 1);
    for (int i = 0; i < 16; i++) {
        fill_all(10 + i);
        child[i] = forked();
        if (!child[i]) {
            usleep(20000); // meanwhile other children start and end
            check_all(10 + i);
            fill_all(100 + i);
            churn(100 + i);
            pid_t pid = forked();
            if (!pid)
                churn(100 + i);
            check_all(100 + i);
            _exit(pid ? ended(pid) : 0);
        }
    }
    fill_all(2);
    for (int i = 0; i < 16; i++)
        CHECK(ended(child[i]) == 0);
    check_all(2);
}

volatile int enough;

void *allocate(void *arg) {
    enum { SLOTS = 200 };
    unsigned seed = (unsigned)(uintptr_t)arg;
    unsigned char *slot[SLOTS] = {0};
    size_t size[SLOTS] = {0};
    while (!enough) {
        unsigned i = (unsigned)rand_r(&seed) % SLOTS;
        if (slot[i]) {
            CHECK(slot[i][0] == (unsigned char)i && slot[i][size[i] - 1] == (unsigned char)i);
            free(slot[i]);
        }
        size[i] = 1 + (unsigned)rand_r(&seed) % (i % 10 ? 2000 : 300000);
        slot[i] = malloc(size[i]);
        CHECK(slot[i]);
        memset(slot[i], (int)i, size[i]);
    }
    return NULL;
}

void threads(size_t megabytes) {
    pthread_t thread[3];
    build(megabytes, 1);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, allocate, (void *)(uintptr_t)(i + 1)) == 0);
    for (long i = 0; i < 40; i++) {
        fill_all(10 + i);
        pid_t pid = forked();
        if (!pid) {
            check_all(10 + i);
            fill_all(1000);
            for (int round = 0; round < 100; round++)
                free(malloc((size_t)round * 1000));
            churn(1000);
            check_all(1000);
            pid_t grandchild = forked();
            if (!grandchild)
                fill_all(1001);
            check_all(grandchild ? 1000 : 1001);
            _exit(grandchild ? ended(grandchild) : 0);
        }
        fill_all(2);
        CHECK(ended(pid) == 0);
        check_all(2);
    }
    enough = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
}

// A gigabyte that is hardly touched. Holes stay holes in the child, whatever the parent does with
// them.
void sparse(size_t megabytes) {
    const size_t size = 1024 * MIB, step = 3 * MIB;
    (void)megabytes;
    int fd[2];
    CHECK(pipe(fd) == 0);
    char *huge = malloc(size), *zeroes = calloc(64, MIB), *freed = malloc(8 * MIB);
    CHECK(huge && zeroes && freed);
    memset(freed, 9, 8 * MIB);
    free(freed);
    for (size_t at = 0; at < size; at += step)
        huge[at] = 7;
    pid_t pid = forked();
    if (!pid) {
        await(fd[0]);
        for (size_t at = 0; at < size; at += PAGE)
            CHECK(huge[at] == (at % step == 0 ? 7 : 0));
        for (size_t at = 0; at < 64 * MIB; at += PAGE)
            CHECK(zeroes[at] == 0);
        memset(huge, 5, 50 * MIB);
        free(huge);
        free(zeroes);
        malloc_trim(0);
        for (int i = 0; i < 10; i++) {
            char *p = calloc(30, MIB);
            for (size_t at = 0; at < 30 * MIB; at += PAGE)
                CHECK(p[at] == 0);
            memset(p, 6, 30 * MIB);
            free(p);
        }
        _exit(0);
    }
    for (size_t at = 0; at < size; at += step / 3)
        huge[at + PAGE] = 8;
    memset(zeroes, 8, 64 * MIB);
    free(huge);
    free(zeroes);
    malloc_trim(0); // would truncate the file
    char *again = malloc(300 * MIB);
    memset(again, 8, 300 * MIB);
    tell(fd[1]);
    CHECK(ended(pid) == 0);
    for (size_t at = 0; at < 300 * MIB; at += PAGE)
        CHECK(again[at] == 8);
}

// A timer signal comes all the time, and its handler looks at the heap.
static volatile long ticks;
static void tick(int number) {
    (void)number;
    ticks += generation > 0;
}

void signals(size_t megabytes) {
    struct itimerval often = {{0, 200}, {0, 200}};
    build(megabytes, 1);
    signal(SIGALRM, tick);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            CHECK(errno == EINTR || errno == EAGAIN);
            continue;
        }
        if (!pid) {
            setitimer(ITIMER_REAL, &often, NULL); // a child does not inherit timers
            long before = ticks;
            check_all(1);
            fill_all(3);
            while (ticks < before + 2) {
            }
            check_all(3);
            _exit(0);
        }
        CHECK(ended(pid) == 0);
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    check_all(1);
    fill_all(2);
}

// The thread is to be cancelled, but fork() is no cancellation point.
static void *forks_and_ends(void *done) {
    pthread_cancel(pthread_self());
    pid_t pid = fork();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    CHECK(pid >= 0);
    check_all(1);
    fill_all(pid ? 2 : 3);
    if (!pid)
        _exit(0);
    CHECK(ended(pid) == 0);
    return done;
}

void cancelled(size_t megabytes) {
    pthread_t thread;
    void *result = NULL;
    alarm(30); // rather than hang
    build(megabytes, 1);
    CHECK(pthread_create(&thread, NULL, forks_and_ends, &blocks) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == &blocks);
}

// The child makes parts of the heap unwritable while they are copied.
void protect(size_t megabytes) {
    int fd[2];
    CHECK(pipe(fd) == 0);
    build(megabytes, 1);
    pid_t pid = forked();
    if (!pid) {
        size_t parts = 0;
        for (struct block *b = blocks; b; b = b->next)
            if (b->size >= 100000) {
                uintptr_t at = ((uintptr_t)b + 2 * PAGE) & ~(uintptr_t)(PAGE - 1);
                CHECK(mprotect((void *)at, 4 * PAGE, parts++ % 2 ? PROT_READ : PROT_NONE) == 0);
            }
        await(fd[0]);
        for (struct block *b = blocks; b; b = b->next)
            if (b->size >= 100000) {
                uintptr_t at = ((uintptr_t)b + 2 * PAGE) & ~(uintptr_t)(PAGE - 1);
                CHECK(mprotect((void *)at, 4 * PAGE, PROT_READ | PROT_WRITE) == 0);
            }
        check_all(1);
        _exit(0);
    }
    fill_all(2);
    churn(2);
    tell(fd[1]);
    CHECK(ended(pid) == 0);
    check_all(2);
}
